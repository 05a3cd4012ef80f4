#include "kernels/core/isa.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/kernels/op_test.h"

namespace k25 {
namespace {

/// Sets K25_CPU_ISA for one scope.
class Wish {
 public:
  explicit Wish(const char* value) {
    if (const char* old = std::getenv(kName)) {
      old_ = old;
      had_ = true;
    }
    value == nullptr ? unsetenv(kName) : setenv(kName, value, 1);
  }
  ~Wish() { had_ ? setenv(kName, old_.c_str(), 1) : unsetenv(kName); }

 private:
  static constexpr const char* kName = "K25_CPU_ISA";
  std::string old_;
  bool had_ = false;
};

TEST(CpuIsa, Names) {
  EXPECT_EQ(cpu_isa_name(CpuIsa::kV1), "x86-64");
  EXPECT_EQ(cpu_isa_name(CpuIsa::kV3), "x86-64-v3");
  EXPECT_EQ(cpu_isa_name(CpuIsa::kV4), "x86-64-v4");
}

TEST(CpuIsa, TheBestSetIsTheDefault) {
  const Wish none(nullptr);
  const CpuIsa best = detect_cpu_isa();
  // Independent of the detection: what single features say.
  EXPECT_EQ(best >= CpuIsa::kV3, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                     __builtin_cpu_supports("bmi2"));
  EXPECT_EQ(best >= CpuIsa::kV4,
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vl"));
  const Wish empty("");
  EXPECT_EQ(detect_cpu_isa(), best);
}

TEST(CpuIsa, ALowerSetCanBeChosen) {
  const Wish none(nullptr);
  const CpuIsa best = detect_cpu_isa();
  for (const CpuIsa isa : {CpuIsa::kV1, CpuIsa::kV3, CpuIsa::kV4}) {
    const Wish wish(std::string(cpu_isa_name(isa)).c_str());
    if (isa <= best) {
      EXPECT_EQ(detect_cpu_isa(), isa);
    } else {
      EXPECT_TRUE(op_test::throws_error(
          [] { detect_cpu_isa(); }, ErrorKind::kUsage,
          {"K25_CPU_ISA=", cpu_isa_name(isa), "at most", cpu_isa_name(best)}));
    }
  }
}

TEST(CpuIsa, OtherNamesAreRefused) {
  for (const char* name : {"avx512", "x86-64-v2", "v3", "X86-64-V3", " x86-64", "x86-64-v33"}) {
    const Wish wish(name);
    EXPECT_TRUE(op_test::throws_error(
        [] { detect_cpu_isa(); }, ErrorKind::kUsage,
        {std::string("K25_CPU_ISA=") + name, "expected x86-64, x86-64-v3 or x86-64-v4"}));
  }
}

}  // namespace
}  // namespace k25
