#include "kernels/core/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

namespace k25 {
namespace {

using Words = std::array<std::uint32_t, 4>;

TEST(Philox, KnownAnswers) {
  // Random123 1.09, kat_vectors, philox4x32 with 10 rounds.
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(
      philox4x32({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}),
      (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(
      philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
      (Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, NameHashIsFnv1a) {
  EXPECT_EQ(name_hash(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(name_hash("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(name_hash("foobar"), 0x85944171f73967e8ull);
}

TEST(Philox, DrawsAreAPureFunctionOfTheirKeys) {
  const Philox p(1, 2, "w");
  EXPECT_EQ(p.bits(7), Philox(1, 2, "w").bits(7));
  std::set<std::uint32_t> distinct{p.bits(7),
                                   p.bits(8),
                                   Philox(2, 2, "w").bits(7),
                                   Philox(1, 3, "w").bits(7),
                                   Philox(1, 2, "v").bits(7),
                                   Philox(1ull << 32 | 1, 2, "w").bits(7),
                                   p.bits(7 + (1ull << 34)),
                                   p.bits(7 + (1ull << 2))};
  EXPECT_EQ(distinct.size(), 8u);
}

TEST(Philox, FourDrawsAreOneBlock) {
  // seed and stream enter as key and upper counter; index / 4 is the lower counter.
  const Philox p(0x123456789abcdef0ull, 5, "name");
  std::set<std::uint32_t> words;
  for (std::uint64_t i = 0; i < 8; ++i) words.insert(p.bits(i));
  EXPECT_EQ(words.size(), 8u);
}

TEST(Philox, StreamsAreFrozen) {
  // Checkpoints and data orders depend on these values: a change breaks every stored run.
  const Philox p(17, 3, "model.layers.0.attention.wqkv");
  EXPECT_EQ(p.bits(0), 0x94c79d01u);
  EXPECT_EQ(p.bits(5), 0x2acce2b2u);
  EXPECT_EQ(p.below(3, 1000003), 179818u);
  EXPECT_EQ(p.uniform(9), 0x1.30b384p-2f);
}

TEST(Philox, UniformIsNeverZeroOrOne) {
  // The extremes of the map itself: 23 bits all clear and all set.
  EXPECT_GT((0.f + 0.5f) * 0x1p-23f, 0.f);
  const float most = (static_cast<float>(0xffffffffu >> 9) + 0.5f) * 0x1p-23f;
  EXPECT_LT(most, 1.f);
  EXPECT_EQ(most, 1.f - 0x1p-24f);
  const Philox p(9, 0, "uniform");
  double sum = 0, squares = 0;
  constexpr int kDraws = 200000;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const float u = p.uniform(i);
    ASSERT_GT(u, 0.f);
    ASSERT_LT(u, 1.f);
    ASSERT_EQ(u, (static_cast<float>(p.bits(i) >> 9) + 0.5f) * 0x1p-23f);
    sum += u;
    squares += double{u} * u;
  }
  // Means within five standard deviations; the draws are fixed, so this cannot flicker.
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kDraws));
}

TEST(Philox, BelowStaysBelowAndReachesEverything) {
  const Philox p(4, 1, "below");
  for (const std::uint64_t bound : {1ull, 2ull, 3ull, 7ull, 100ull}) {
    std::vector<int> hits(bound);
    for (std::uint64_t i = 0; i < 2000; ++i) {
      const std::uint64_t x = p.below(i, bound);
      ASSERT_LT(x, bound);
      ++hits[x];
    }
    const double mean = 2000.0 / static_cast<double>(bound);
    for (const int h : hits) EXPECT_NEAR(h, mean, 6 * std::sqrt(mean) + 1);
  }
  bool above_half = false;
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_LT(p.below(i, ~0ull), ~0ull);
    above_half = above_half || p.below(i, ~0ull) > (1ull << 63);
  }
  EXPECT_TRUE(above_half);
}

TEST(Philox, BelowIsTheScaledPairOfWords) {
  const Philox p(4, 1, "below");
  for (std::uint64_t i = 0; i < 20; ++i) {
    const std::uint64_t r = static_cast<std::uint64_t>(p.bits(2 * i)) << 32 | p.bits(2 * i + 1);
    EXPECT_EQ(p.below(i, 1ull << 40), r >> 24);
  }
}

TEST(Philox, NormalHasMomentsOfTheNormalDistribution) {
  const Philox p(11, 0, "normal");
  constexpr int kDraws = 200000;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const double x = p.normal(i);
    ASSERT_LT(std::abs(x), 5.5);
    m1 += x;
    m2 += x * x;
    m3 += x * x * x;
    m4 += x * x * x * x;
  }
  EXPECT_NEAR(m1 / kDraws, 0, 5 * std::sqrt(1.0 / kDraws));
  EXPECT_NEAR(m2 / kDraws, 1, 5 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(m3 / kDraws, 0, 5 * std::sqrt(15.0 / kDraws));
  EXPECT_NEAR(m4 / kDraws, 3, 5 * std::sqrt(96.0 / kDraws));
}

}  // namespace
}  // namespace k25
