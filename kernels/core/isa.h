#pragma once
// CPU instruction sets. Sources listed as ISA_SOURCES are compiled once per set, each time with
// K25_ISA defined as the namespace below; the dispatcher picks one at run time.
//
// Rule for ISA sources: everything they define lives in namespace K25_ISA (or an anonymous one),
// and they instantiate no standard container. A weak symbol compiled for AVX-512 could otherwise be
// the copy that the linker keeps for the whole program. tests/kernels/core/isa_symbols_test.sh
// checks it.

#include <cstdint>
#include <string_view>

namespace k25 {

/// isa_v1 = x86-64 (SSE2), isa_v3 = x86-64-v3 (AVX2, FMA), isa_v4 = x86-64-v4 (AVX-512).
enum class CpuIsa : std::uint8_t { kV1, kV3, kV4 };

/// The best set this CPU has, or the lower one named by the environment variable K25_CPU_ISA
/// (x86-64, x86-64-v3, x86-64-v4). Throws kUsage for another name or a set the CPU lacks.
CpuIsa detect_cpu_isa();

std::string_view cpu_isa_name(CpuIsa isa);

}  // namespace k25

/// Calls the build of `function` for `isa`: K25_ISA_CALL(ctx.isa, gemm_cpu, args...).
/// The three declarations come from K25_ISA_DECLARE in the op's private header.
#define K25_ISA_CALL(isa, function, ...)                         \
  ((isa) == ::k25::CpuIsa::kV4   ? isa_v4::function(__VA_ARGS__) \
   : (isa) == ::k25::CpuIsa::kV3 ? isa_v3::function(__VA_ARGS__) \
                                 : isa_v1::function(__VA_ARGS__))

/// Declares `...` in all three namespaces.
#define K25_ISA_DECLARE(...) \
  namespace isa_v1 {         \
  __VA_ARGS__                \
  }                          \
  namespace isa_v3 {         \
  __VA_ARGS__                \
  }                          \
  namespace isa_v4 {         \
  __VA_ARGS__                \
  }
