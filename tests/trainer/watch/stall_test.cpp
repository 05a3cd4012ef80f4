// What is a stall, of which phase and which rank.
#include "trainer/watch/stall.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace k25::trainer {
namespace {

using optim::RankPhases;

/// data, forward, backward, wait, update, save: 1.0 s in all.
RankPhases usual(int rank) { return {rank, {0.1, 0.3, 0.4, 0.1, 0.1, 0.0}}; }

class StallTest : public ::testing::Test {
 protected:
  explicit StallTest(double least = 0.0) : detector_(least) {}
  void run_usual(std::int64_t steps, int ranks = 3) {
    std::vector<RankPhases> all;
    for (int r = 0; r < ranks; ++r) all.push_back(usual(r));
    for (std::int64_t i = 0; i < steps; ++i) {
      EXPECT_FALSE(detector_.observe(++step_, all).has_value()) << step_;
    }
  }
  std::optional<Stall> observe(const std::vector<RankPhases>& ranks) {
    return detector_.observe(++step_, ranks);
  }
  StallDetector detector_;
  std::int64_t step_ = 0;
};

TEST_F(StallTest, AReadThatSleepsOnOneRank) {
  run_usual(10);
  RankPhases slow = usual(1), waits = usual(0), waits_too = usual(2);
  slow.seconds[0] += 15.0;
  waits.seconds[3] += 15.0;
  waits_too.seconds[3] += 14.9;
  const std::optional<Stall> stall = observe({waits, slow, waits_too});
  ASSERT_TRUE(stall.has_value());
  EXPECT_EQ(stall->step, 11);
  EXPECT_EQ(stall->phase, StepPhase::kData);
  EXPECT_EQ(stall->rank, 1);
  EXPECT_DOUBLE_EQ(stall->seconds, 16.0);
  EXPECT_DOUBLE_EQ(stall->median, 1.0);
  EXPECT_DOUBLE_EQ(stall->spread, 15.0);
  EXPECT_DOUBLE_EQ(stall->usual[0], 0.1);
  run_usual(1);  // the next one is no stall
}

TEST_F(StallTest, EachPhaseIsFound) {
  for (const StepPhase phase : {StepPhase::kData, StepPhase::kForward, StepPhase::kBackward,
                                StepPhase::kUpdate, StepPhase::kSave}) {
    run_usual(9);
    RankPhases slow = usual(2);
    slow.seconds[static_cast<std::size_t>(phase)] += 2.5;
    const std::optional<Stall> stall = observe({usual(0), usual(1), slow});
    ASSERT_TRUE(stall.has_value()) << phase_name(phase);
    EXPECT_EQ(stall->phase, phase);
    EXPECT_EQ(stall->rank, 2);
  }
}

TEST_F(StallTest, AllWaitForTheNetwork) {
  run_usual(8, 2);
  RankPhases a = usual(0), b = usual(1);
  a.seconds[3] = b.seconds[3] = 9.0;
  const std::optional<Stall> stall = observe({a, b});
  ASSERT_TRUE(stall.has_value());
  EXPECT_EQ(stall->phase, StepPhase::kWait);
  EXPECT_DOUBLE_EQ(stall->spread, 0.0);
}

TEST_F(StallTest, NotBeforeEightStepsAndNotAtThreeMedians) {
  run_usual(7, 1);
  RankPhases slow = usual(0);
  slow.seconds[1] = 100.0;
  EXPECT_FALSE(observe({slow}).has_value());  // the 8th
  slow.seconds = {1.0, 1.0, 1.0, 0.0, 0.0, 0.0};
  EXPECT_FALSE(observe({slow}).has_value());  // 3 x the median
  slow.seconds[5] = 0.001;
  EXPECT_TRUE(observe({slow}).has_value());
}

TEST_F(StallTest, TheMedianIsOfTheLastSteps) {
  run_usual(20, 1);
  RankPhases slow = usual(0);
  for (double& s : slow.seconds) s *= 10;
  // Slow for good: stalls until the window is half full of slow steps, and then the usual.
  std::int64_t stalls = 0;
  for (int i = 0; i < 200; ++i) stalls += observe({slow}).has_value() ? 1 : 0;
  EXPECT_EQ(stalls, 20);
  EXPECT_FALSE(observe({usual(0)}).has_value());
}

class ShortStepTest : public StallTest {
 protected:
  ShortStepTest() : StallTest(0.5) {}
};

TEST_F(ShortStepTest, WhatIsLongOnlyBesideAShortMedianIsNone) {
  const RankPhases quick{0, {0.001, 0.001, 0.001, 0.0, 0.001, 0.0}};
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(observe({quick}).has_value());
  RankPhases slow = quick;
  slow.seconds[0] = 0.4;
  EXPECT_FALSE(observe({slow}).has_value());
  slow.seconds[0] = 0.6;
  EXPECT_TRUE(observe({slow}).has_value());
}

TEST(StallText, NamesEverything) {
  const Stall stall{.step = 12,
                    .seconds = 16.0,
                    .median = 1.0,
                    .phase = StepPhase::kData,
                    .rank = 1,
                    .spread = 15.0,
                    .of_rank = {15.1, 0.3, 0.4, 0.1, 0.1, 0.0},
                    .usual = {0.1, 0.3, 0.4, 0.1, 0.1, 0.0}};
  EXPECT_EQ(stall_text(stall, "node7"),
            "stall: step 12 took 16.000 s, the median is 1.000 s; rank 1 (host node7) came last, "
            "15.000 s after the first; data grew most, from 0.100 to 15.100 s");
  const auto json = nlohmann::json::parse(stall_json(stall, "node7"));
  EXPECT_EQ(json.at("step"), 12);
  EXPECT_EQ(json.at("phase"), "data");
  EXPECT_EQ(json.at("rank"), 1);
  EXPECT_EQ(json.at("host"), "node7");
  EXPECT_EQ(json.at("spread_s"), 15.0);
  EXPECT_EQ(json.at("rank_s").at("data"), 15.1);
  EXPECT_EQ(json.at("usual_s").at("save"), 0.0);
}

}  // namespace
}  // namespace k25::trainer
