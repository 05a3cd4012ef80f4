#include "kernels/core/isa.h"

#include <cstdlib>
#include <string>

#include "kernels/core/check.h"

namespace k25 {
namespace {

CpuIsa best_isa() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return CpuIsa::kV4;
  if (__builtin_cpu_supports("x86-64-v3")) return CpuIsa::kV3;
  return CpuIsa::kV1;
}

}  // namespace

CpuIsa detect_cpu_isa() {
  const CpuIsa best = best_isa();
  const char* wish = std::getenv("K25_CPU_ISA");
  if (wish == nullptr || *wish == '\0') return best;
  for (CpuIsa isa : {CpuIsa::kV1, CpuIsa::kV3, CpuIsa::kV4}) {
    if (cpu_isa_name(isa) != wish) continue;
    if (isa > best) {
      fail(ErrorKind::kUsage, std::string("K25_CPU_ISA=") + wish + ": this CPU offers at most " +
                                  std::string(cpu_isa_name(best)) + "; set that or unset it");
    }
    return isa;
  }
  fail(ErrorKind::kUsage,
       std::string("K25_CPU_ISA=") + wish + ": expected x86-64, x86-64-v3 or x86-64-v4");
}

std::string_view cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kV1:
      return "x86-64";
    case CpuIsa::kV3:
      return "x86-64-v3";
    case CpuIsa::kV4:
      return "x86-64-v4";
  }
  return "?";
}

}  // namespace k25
