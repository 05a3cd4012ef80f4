#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/core/check.h"

namespace k25::optim {
namespace {

TEST(Schedule, WarmUpIsLinearAndEndsAtFullRate) {
  for (const ScheduleKind kind :
       {ScheduleKind::kConstant, ScheduleKind::kCosine, ScheduleKind::kWsd}) {
    const Schedule s{.kind = kind, .lr = 0.5, .min_ratio = 0.1, .warmup = 4, .total = 100};
    EXPECT_EQ(learning_rate(s, 0), 0.125);
    EXPECT_EQ(learning_rate(s, 1), 0.25);
    EXPECT_EQ(learning_rate(s, 2), 0.375);
    EXPECT_EQ(learning_rate(s, 3), 0.5);
    EXPECT_EQ(learning_rate(s, 4), 0.5);
  }
}

TEST(Schedule, ConstantStays) {
  const Schedule s{.kind = ScheduleKind::kConstant, .lr = 0.25, .warmup = 0, .total = 10};
  for (const std::int64_t u : {0, 5, 9, 10, 1000}) EXPECT_EQ(learning_rate(s, u), 0.25);
}

TEST(Schedule, CosineFallsToTheMinimumAndHolds) {
  const Schedule s{
      .kind = ScheduleKind::kCosine, .lr = 1.0, .min_ratio = 0.2, .warmup = 10, .total = 110};
  EXPECT_EQ(learning_rate(s, 10), 1.0);
  EXPECT_NEAR(learning_rate(s, 60), 0.6, 1e-15);                         // half way
  EXPECT_NEAR(learning_rate(s, 35), 0.6 + 0.4 * std::sqrt(0.5), 1e-15);  // pi / 4
  EXPECT_NEAR(learning_rate(s, 85), 0.6 - 0.4 * std::sqrt(0.5), 1e-15);  // 3 pi / 4
  EXPECT_NEAR(learning_rate(s, 10 + 100 / 3), 0.2 + 0.4 * (1 + std::cos(3.14159265358979 * 0.33)),
              1e-14);
  for (const std::int64_t u : {110, 111, 100000}) EXPECT_EQ(learning_rate(s, u), 0.2);
  for (std::int64_t u = 10; u < 115; ++u) {
    EXPECT_LE(learning_rate(s, u + 1), learning_rate(s, u));
  }
}

TEST(Schedule, WsdHoldsThenFallsLinearly) {
  const Schedule s{.kind = ScheduleKind::kWsd,
                   .lr = 1.0,
                   .min_ratio = 0.0,
                   .warmup = 2,
                   .total = 20,
                   .decay = 8};
  for (const std::int64_t u : {2, 7, 12}) EXPECT_EQ(learning_rate(s, u), 1.0);
  EXPECT_EQ(learning_rate(s, 13), 0.875);
  EXPECT_EQ(learning_rate(s, 16), 0.5);
  EXPECT_EQ(learning_rate(s, 19), 0.125);
  for (const std::int64_t u : {20, 21, 1000}) EXPECT_EQ(learning_rate(s, u), 0.0);
}

TEST(Schedule, WsdWithoutDecayIsConstant) {
  const Schedule s{.kind = ScheduleKind::kWsd, .lr = 1.0, .warmup = 2, .total = 20, .decay = 0};
  for (const std::int64_t u : {2, 19, 20, 50}) EXPECT_EQ(learning_rate(s, u), 1.0);
}

TEST(Schedule, WsdDecayNeverReachesIntoTheWarmUp) {
  const Schedule s{.kind = ScheduleKind::kWsd,
                   .lr = 1.0,
                   .min_ratio = 0.0,
                   .warmup = 10,
                   .total = 20,
                   .decay = 18};
  EXPECT_EQ(learning_rate(s, 9), 1.0);
  EXPECT_EQ(learning_rate(s, 10), 1.0);
  EXPECT_EQ(learning_rate(s, 15), 0.5);
}

TEST(Schedule, RunsShorterThanTheWarmUp) {
  const Schedule s{
      .kind = ScheduleKind::kCosine, .lr = 1.0, .min_ratio = 0.5, .warmup = 10, .total = 5};
  EXPECT_EQ(learning_rate(s, 4), 0.5);
  EXPECT_EQ(learning_rate(s, 9), 1.0);
  EXPECT_EQ(learning_rate(s, 10), 0.5);  // beyond the end
}

TEST(Schedule, RefusesNegativeCounts) { EXPECT_THROW(learning_rate({}, -1), Error); }

}  // namespace
}  // namespace k25::optim
