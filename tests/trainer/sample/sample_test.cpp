// Drawing one token from logits.
#include "trainer/sample/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace k25::trainer {
namespace {

SampleOptions options(double temperature, std::int64_t top_k, std::uint64_t seed = 7) {
  return {.prompt = "", .tokens = 1, .temperature = temperature, .top_k = top_k, .seed = seed};
}

std::map<std::int32_t, double> shares(const std::vector<float>& logits, const SampleOptions& o) {
  constexpr std::int64_t kDraws = 20000;
  std::map<std::int32_t, double> share;
  for (std::int64_t i = 0; i < kDraws; ++i) share[pick_token(logits, o, i)] += 1.0 / kDraws;
  return share;
}

TEST(PickToken, temperature_0_takes_the_largest_and_the_lower_id_of_equals) {
  for (const std::int64_t draw : {0, 1, 99}) {
    EXPECT_EQ(pick_token({0.0f, 3.0f, -1.0f, 3.0f}, options(0.0, 0), draw), 1);
    EXPECT_EQ(pick_token({0.0f, 3.0f, -1.0f, 3.0f}, options(5.0, 1), draw), 1);
    EXPECT_EQ(pick_token({-2.0f}, options(1.0, 0), draw), 0);
  }
}

TEST(PickToken, frequencies_follow_the_softmax) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  const auto at_1 = shares(logits, options(1.0, 0));
  EXPECT_NEAR(at_1.at(0), 0.5, 0.02);
  EXPECT_NEAR(at_1.at(1), 0.3, 0.02);
  EXPECT_NEAR(at_1.at(2), 0.2, 0.02);
  // At temperature 1/2 the odds are squared: 25 : 9 : 4.
  const auto at_half = shares(logits, options(0.5, 0));
  EXPECT_NEAR(at_half.at(0), 25.0 / 38, 0.02);
  EXPECT_NEAR(at_half.at(2), 4.0 / 38, 0.02);
}

TEST(PickToken, top_k_cuts_and_renormalises) {
  const std::vector<float> logits = {std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  const auto two = shares(logits, options(1.0, 2));
  EXPECT_EQ(two.count(0), 0u);
  EXPECT_NEAR(two.at(1), 0.625, 0.02);
  EXPECT_EQ(shares(logits, options(1.0, 1000)).size(), 3u) << "more than there are: all";
}

TEST(PickToken, a_draw_is_a_function_of_seed_and_number) {
  const std::vector<float> logits(50, 0.0f);
  std::size_t same = 0;
  for (std::int64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(pick_token(logits, options(1.0, 0), i), pick_token(logits, options(1.0, 0), i));
    same += pick_token(logits, options(1.0, 0, 1), i) == pick_token(logits, options(1.0, 0, 2), i);
  }
  EXPECT_LT(same, 20u) << "other seeds give other draws";
}

TEST(PickToken, extreme_logits_stay_in_range) {
  for (const double temperature : {1e-300, 1e-3, 1.0, 1e300}) {
    const std::int32_t token = pick_token({-1e30f, 1e30f, 0.0f}, options(temperature, 0), 3);
    EXPECT_GE(token, 0);
    EXPECT_LT(token, 3);
  }
  EXPECT_EQ(pick_token({-1e30f, 1e30f, 0.0f}, options(1e-3, 0), 3), 1);
}

}  // namespace
}  // namespace k25::trainer
