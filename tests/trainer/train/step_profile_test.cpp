// Which steps --profile names.
#include "trainer/train/step_profile.h"

#include <gtest/gtest.h>

#include <tuple>

namespace k25::trainer {
namespace {

TEST(ProfileSteps, TwoStepsFromOne) {
  for (const auto& [text, first, last] :
       {std::tuple{"1:1", 1, 1}, {"3:12", 3, 12}, {"1:1000000", 1, 1000000}}) {
    ProfileSteps steps;
    EXPECT_EQ(read_profile_steps(text, steps), "") << text;
    EXPECT_EQ(steps.first, first);
    EXPECT_EQ(steps.last, last);
  }
}

TEST(ProfileSteps, AnythingElseIsRefused) {
  for (const char* text : {"", ":", "3", "3:", ":3", "0:3", "-1:3", "a:b", "1:b", "1.5:2", "1:2:3",
                           " 1:2", "1: 2", "0x1:2", "1:99999999999999999999", "01:2"}) {
    ProfileSteps steps;
    const std::string problem = read_profile_steps(text, steps);
    EXPECT_EQ(problem, "expected A:B, the first and the last step, counted from 1, got '" +
                           std::string(text) + "'");
  }
  ProfileSteps steps;
  EXPECT_EQ(read_profile_steps("4:3", steps), "the last step, 3, is before the first, 4");
}

}  // namespace
}  // namespace k25::trainer
