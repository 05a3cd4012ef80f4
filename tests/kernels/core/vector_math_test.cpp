#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/kernels/core/vector_math_isa.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::for_each_isa;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Floats over all exponents and both signs, finely between -90 and 90, and the special ones.
std::vector<float> sample_floats() {
  std::vector<float> x = {0.f,
                          -0.f,
                          kInfinity,
                          -kInfinity,
                          kNan,
                          88.7228f,
                          88.7229f,
                          -87.3365f,
                          -87.3366f,
                          std::bit_cast<float>(0x7fffffffu),
                          std::bit_cast<float>(0xff800001u)};
  for (std::uint64_t u = 0; u < (std::uint64_t{1} << 32); u += 40009) {
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(u)));
  }
  for (int i = -90000; i <= 90000; ++i) x.push_back(static_cast<float>(i) * 1.0003e-3f);
  return x;
}

std::vector<float> exp_of(CpuIsa isa, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  K25_ISA_CALL(isa, exp_all, x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  return y;
}

TEST(VectorMath, ExpIsWithinTwoUlp) {
  const std::vector<float> x = sample_floats();
  for_each_isa([&](Context& ctx) {
    const std::vector<float> y = exp_of(ctx.isa, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(y[i])) << std::hex << bits_of(x[i]);
      } else if (exact > std::numeric_limits<float>::max()) {
        ASSERT_EQ(y[i], kInfinity) << x[i];
      } else if (exact < std::numeric_limits<float>::min()) {
        ASSERT_EQ(bits_of(y[i]), 0u) << x[i];
      } else {
        ASSERT_LE(std::abs(y[i] - exact), 2 * std::ldexp(1.0, std::ilogb(exact) - 23)) << x[i];
      }
    }
  });
}

TEST(VectorMath, ExpHasTheSameBitsOnEveryInstructionSet) {
  const std::vector<float> x = sample_floats();
  const std::vector<float> reference = exp_of(CpuIsa::kV1, x);
  for_each_isa([&](Context& ctx) {
    const std::vector<float> y = exp_of(ctx.isa, x);
    std::vector<float> bounded(x.size());
    K25_ISA_CALL(ctx.isa, exp_bounded_all, x.data(), bounded.data(),
                 static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(y[i]) && std::isnan(bounded[i]));
        continue;
      }
      ASSERT_EQ(bits_of(y[i]), bits_of(reference[i])) << x[i];
      if (x[i] <= 88.f) {
        ASSERT_EQ(bits_of(bounded[i]), bits_of(reference[i])) << x[i];
      }
    }
  });
}

/// Sum or maximum over 16 lanes, joined in a tree, written plainly.
template <class T, class Join>
T lanes_of_16(const std::vector<T>& x, T start, const Join& join) {
  std::vector<T> lanes(16, start);
  for (std::size_t i = 0; i < x.size(); ++i) lanes[i % 16] = join(lanes[i % 16], x[i]);
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) lanes[i] = join(lanes[i], lanes[i + width]);
  }
  return lanes[0];
}

template <class T>
void expect_reductions(CpuIsa isa) {
  for (const std::int64_t n : {0, 1, 5, 15, 16, 17, 31, 32, 100, 1000}) {
    SCOPED_TRACE(n);
    std::vector<T> x;
    for (const double v : op_test::random_values("x", n, -3, 1)) x.push_back(static_cast<T>(v));
    // At another alignment too.
    std::vector<T> shifted(x);
    shifted.insert(shifted.begin(), T(9));
    const T sum = lanes_of_16<T>(x, 0, [](T a, T b) { return a + b; });
    const T max = lanes_of_16<T>(x, -std::numeric_limits<T>::infinity(),
                                 [](T a, T b) { return b > a ? b : a; });
    EXPECT_EQ(K25_ISA_CALL(isa, sum_of, x.data(), n), sum);
    EXPECT_EQ(K25_ISA_CALL(isa, sum_of, shifted.data() + 1, n), sum);
    EXPECT_EQ(K25_ISA_CALL(isa, max_of, x.data(), n), max);
    EXPECT_EQ(K25_ISA_CALL(isa, max_of, shifted.data() + 1, n), max);
  }
}

TEST(VectorMath, ReductionsKeepSixteenLanes) {
  for_each_isa([](Context& ctx) {
    expect_reductions<float>(ctx.isa);
    expect_reductions<double>(ctx.isa);
  });
}

TEST(VectorMath, MaximumPassesOverNanAndSumDoesNot) {
  for_each_isa([](Context& ctx) {
    for (const std::size_t at : {0u, 7u, 20u, 39u}) {
      std::vector<float> x(40, -2.f);
      x[25] = 5.f;
      x[at] = kNan;
      EXPECT_EQ(K25_ISA_CALL(ctx.isa, max_of, x.data(), 40), 5.f);
      EXPECT_TRUE(std::isnan(K25_ISA_CALL(ctx.isa, sum_of, x.data(), 40)));
    }
  });
}

TEST(VectorMath, BFloat16AsItsConstructor) {
  const std::vector<float> x = sample_floats();
  const auto n = static_cast<std::int64_t>(x.size());
  for_each_isa([&](Context& ctx) {
    std::vector<BFloat16> y(x.size());
    std::vector<float> back(x.size());
    K25_ISA_CALL(ctx.isa, round_all, x.data(), y.data(), n);
    K25_ISA_CALL(ctx.isa, widen_all, y.data(), back.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y[i].bits, BFloat16(x[i]).bits) << x[i];
      ASSERT_EQ(bits_of(back[i]), bits_of(static_cast<float>(y[i])));
    }
  });
}

TEST(VectorMath, Transpose) {
  for_each_isa([](Context& ctx) {
    std::vector<float> x(256), y(256);
    for (std::size_t i = 0; i < 256; ++i) x[i] = static_cast<float>(i);
    K25_ISA_CALL(ctx.isa, transpose_16, x.data(), y.data());
    for (std::size_t r = 0; r < 16; ++r) {
      for (std::size_t c = 0; c < 16; ++c) ASSERT_EQ(y[c * 16 + r], x[r * 16 + c]);
    }
  });
}

}  // namespace
}  // namespace k25::kernels
