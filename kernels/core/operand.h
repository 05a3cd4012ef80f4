#pragma once
// Checks of what an op is handed, for the one validation in <op>.cpp. Messages name op, operand,
// what came and what would be right. Not for ISA sources.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "kernels/core/context.h"
#include "kernels/core/rows.h"
#include "kernels/core/tensor.h"

namespace k25 {

/// What an op asks of a view's strides.
enum class Density : std::uint8_t {
  kRows,        ///< last dimension dense, rows at any distance that keeps them apart
  kContiguous,  ///< no gaps at all
};

/// "bf16 [4, 128]".
inline std::string operand_string(DType dtype, std::span<const std::int64_t> shape) {
  return std::string(dtype_name(dtype)) + " " + shape_string(shape);
}

/// Throws kUsage unless ops with several storage types (fp32, bf16, on the CPU fp64) take `dtype`.
inline void check_float_dtype(std::string_view op, DType dtype, Device device = Device::kCpu) {
  if (dtype == DType::kFloat32 || dtype == DType::kBFloat16) return;
  if (dtype == DType::kFloat64) {
    if (device == Device::kCpu) return;
    fail(ErrorKind::kUsage, std::string(op) + ": fp64 runs on the CPU only; use fp32 or bf16");
  }
  fail(ErrorKind::kUsage, std::string(op) + ": dtype is " + std::string(dtype_name(dtype)) +
                              ", expected fp32, bf16 or fp64");
}

/// Where fp32 and bf16 storage is summed: fp32; for fp64 storage fp64.
constexpr DType accumulator_dtype(DType storage) {
  return storage == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

/// Throws kUsage: "op: name what". Out of the way, so that a check that passes allocates nothing.
[[noreturn, gnu::cold, gnu::noinline]] inline void operand_error(std::string_view op,
                                                                 std::string_view name,
                                                                 const std::string& what) {
  fail(ErrorKind::kUsage, std::string(op) + ": " + std::string(name) + " " + what);
}

/// Throws kUsage unless ops can run on `device` in this build. Plans are made anywhere: their bytes
/// are those of every build.
inline void check_built_for(std::string_view op, Device device) {
  if (kWithCuda || device == Device::kCpu) return;
  fail(ErrorKind::kUsage, std::string(op) + ": planned for the GPU, but this is no CUDA build");
}

/// Throws kUsage unless this build runs on the GPU when the op does, and the operand lies where the
/// op runs.
inline void check_device(std::string_view op, std::string_view name, Device device, Device wanted) {
  check_built_for(op, wanted);
  if (device == wanted) return;
  operand_error(op, name,
                wanted == Device::kCuda
                    ? "is in host memory, but the op runs on the GPU; pass a view of device memory"
                : kWithCuda
                    ? "is on the GPU, but the op runs on the CPU; pass a view of host memory"
                    : "is on the GPU, but this is no CUDA build; pass a view of host memory");
}

/// Throws kUsage unless `t` is a view of `dtype` and `shape` on `device` with the strides asked
/// for. An operand without elements may be absent.
inline void check_operand(std::string_view op, std::string_view name, const ConstTensor& t,
                          DType dtype, std::initializer_list<std::int64_t> wanted, Density density,
                          Device device = Device::kCpu) {
  const std::span<const std::int64_t> shape(wanted.begin(), wanted.size());
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  if (count == 0 && !t) return;

  if (!t) operand_error(op, name, "is missing, expected " + operand_string(dtype, shape));
  check_device(op, name, t.device(), device);
  bool same = t.dtype() == dtype && t.ndim() == static_cast<int>(shape.size());
  for (int d = 0; same && d < t.ndim(); ++d) same = t.dim(d) == shape[static_cast<std::size_t>(d)];
  if (!same) {
    operand_error(op, name,
                  "is " + operand_string(t.dtype(), t.shape()) + ", expected " +
                      operand_string(dtype, shape));
  }
  if (count == 0) return;
  if (density == Density::kContiguous && !t.is_contiguous()) {
    operand_error(op, name, shape_string(shape) + " must be contiguous");
  }
  const int last = t.ndim() - 1;
  if (last >= 0 && t.dim(last) > 1 && t.stride(last) != 1) {
    operand_error(op, name,
                  shape_string(shape) + " has stride " + std::to_string(t.stride(last)) +
                      " in its last dimension; rows must be dense (stride 1)");
  }
  for (int d = 0; d < last; ++d) {
    if (t.dim(d) > 1 && t.stride(d) < t.dim(last)) {
      operand_error(op, name,
                    shape_string(shape) + " has overlapping rows: stride " +
                        std::to_string(t.stride(d)) + " for " + std::to_string(t.dim(last)) +
                        " columns");
    }
  }
}

/// As check_operand, for ops that see a tensor of any shape as a run of `count` elements.
inline void check_flat(std::string_view op, std::string_view name, const ConstTensor& t,
                       DType dtype, std::int64_t count, Device device = Device::kCpu) {
  if (count == 0 && !t) return;
  if (!t || t.dtype() != dtype || t.numel() != count) {
    operand_error(op, name,
                  (t ? "is " + operand_string(t.dtype(), t.shape()) : std::string("is missing")) +
                      ", expected " + std::string(dtype_name(dtype)) + " with " +
                      std::to_string(count) + " elements");
  }
  check_device(op, name, t.device(), device);
  if (!t.is_contiguous()) operand_error(op, name, shape_string(t.shape()) + " must be contiguous");
}

/// A view of three dimensions, or absent.
template <class T>
StridedRows<const T> strided_rows(const ConstTensor& t) {
  if (!t) return {};
  return {t.data<T>(), t.stride(0), t.stride(1)};
}
template <class T>
StridedRows<T> strided_rows(const Tensor& t) {
  if (!t) return {};
  return {t.data<T>(), t.stride(0), t.stride(1)};
}

/// True when two contiguous views share memory.
inline bool overlap(const ConstTensor& a, const ConstTensor& b) {
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.raw());
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.raw());
  return a_begin < b_begin + static_cast<std::uintptr_t>(b.bytes().n) &&
         b_begin < a_begin + static_cast<std::uintptr_t>(a.bytes().n);
}

/// Throws kUsage unless the workspace holds `needed` and is 64-byte aligned.
inline void check_workspace(std::string_view op, const Workspace& workspace, Bytes needed) {
  if (needed.n == 0) return;
  if (workspace.data == nullptr || workspace.size.n < needed.n) {
    fail(ErrorKind::kUsage, std::string(op) + ": workspace of " +
                                std::to_string(workspace.data ? workspace.size.n : 0) +
                                " bytes, the plan needs " + std::to_string(needed.n));
  }
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % 64 != 0) {
    fail(ErrorKind::kUsage, std::string(op) + ": the workspace must be 64-byte aligned");
  }
}

}  // namespace k25
