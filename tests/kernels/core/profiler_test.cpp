// Ranges on the CPU: paths, counts, and times that add up.
#include "kernels/core/profiler.h"

#include <gtest/gtest.h>

#include <thread>

#include "kernels/core/check.h"

namespace k25 {
namespace {

void sleep_ms(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

void run_step(const Context& context) {
  const ProfileRange step(context, "step");
  for (int i = 0; i < 2; ++i) {
    const ProfileRange layer(context, "layer", i);
    sleep_ms(2 + 4 * i);
  }
  const ProfileRange update(context, "update");
}

TEST(Profiler, RangesOfOnePathFormARow) {
  Profiler profiler(nullptr);
  Context context;
  context.profiler = &profiler;
  profiler.start();
  run_step(context);
  run_step(context);
  profiler.stop();
  std::vector<std::string> names;
  for (const Profiler::Row& row : profiler.rows()) {
    names.push_back(row.range);
    EXPECT_EQ(row.count, 2) << row.range;
    EXPECT_FALSE(row.device_seconds.has_value());
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"step", "step/layer 0", "step/layer 1", "step/update"}));
  EXPECT_GE(profiler.rows()[1].host_seconds, 0.004);
  EXPECT_GE(profiler.rows()[2].host_seconds, 0.012);
  EXPECT_GE(profiler.rows()[0].host_seconds,
            profiler.rows()[1].host_seconds + profiler.rows()[2].host_seconds);
}

TEST(Profiler, WithoutOneNothingIsMarked) {
  const Context context;
  EXPECT_EQ(context.profiler, nullptr);
  run_step(context);
}

TEST(Profiler, AnErrorClosesItsRanges) {
  Profiler profiler(nullptr);
  Context context;
  context.profiler = &profiler;
  try {
    const ProfileRange step(context, "step");
    const ProfileRange layer(context, "layer", 0);
    fail(ErrorKind::kInternal, "here");
  } catch (const Error&) {
    profiler.stop();
  }
  ASSERT_EQ(profiler.rows().size(), 2u);
  EXPECT_EQ(profiler.rows()[1].count, 1);
}

TEST(Profiler, DoesNotEndInsideARange) {
  Profiler profiler(nullptr);
  profiler.begin("step", -1);
  EXPECT_THROW(profiler.stop(), Error);
}

}  // namespace
}  // namespace k25
