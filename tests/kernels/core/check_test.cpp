#include "kernels/core/check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <string>
#include <system_error>

namespace k25 {
namespace {

TEST(Check, FailThrowsKindMessageAndPlace) {
  int line = 0;
  try {
    line = __LINE__ + 1;
    fail(ErrorKind::kData, "corpus.h5: no table 'tokens'");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kData);
    EXPECT_EQ(e.exit_code(), 3);
    EXPECT_STREQ(e.what(), "corpus.h5: no table 'tokens'");
    EXPECT_EQ(static_cast<int>(e.where().line()), line);
    EXPECT_NE(std::strstr(e.where().file_name(), "check_test.cpp"), nullptr);
    return;
  }
  FAIL() << "fail() returned";
}

TEST(Check, ExitCodesAreThoseOfTheKinds) {
  EXPECT_EQ(Error(ErrorKind::kInternal, "").exit_code(), 1);
  EXPECT_EQ(Error(ErrorKind::kUsage, "").exit_code(), 2);
  EXPECT_EQ(Error(ErrorKind::kData, "").exit_code(), 3);
  EXPECT_EQ(Error(ErrorKind::kCheckpoint, "").exit_code(), 4);
  EXPECT_EQ(Error(ErrorKind::kNumeric, "").exit_code(), 5);
  EXPECT_EQ(Error(ErrorKind::kCommunication, "").exit_code(), 6);
  EXPECT_EQ(Error(ErrorKind::kGate, "").exit_code(), 7);
}

TEST(Check, FailedConditionNamesItselfTheReasonAndThePlace) {
  const int rows = 3;
  try {
    K25_CHECK(rows == 4, "A has " + std::to_string(rows) + " rows, B has 4");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    const std::string text = e.what();
    EXPECT_NE(text.find("A has 3 rows, B has 4"), std::string::npos);
    EXPECT_NE(text.find("rows == 4"), std::string::npos);
    EXPECT_NE(text.find("tests/kernels/core/check_test.cpp:"), std::string::npos) << text;
    return;
  }
  FAIL() << "K25_CHECK let a false condition pass";
}

TEST(AsError, WhatTheSystemRefusesIsNoBug) {
  const Error memory = as_error(std::bad_alloc());
  EXPECT_EQ(memory.kind(), ErrorKind::kUsage);
  EXPECT_NE(std::strstr(memory.what(), "out of memory: "), nullptr) << memory.what();
  const auto again = std::make_error_code(std::errc::resource_unavailable_try_again);
  const Error thread = as_error(std::system_error(again));
  EXPECT_EQ(thread.kind(), ErrorKind::kUsage);
  EXPECT_NE(std::strstr(thread.what(), "ulimit -u"), nullptr) << thread.what();
  EXPECT_EQ(as_error(std::runtime_error("x")).kind(), ErrorKind::kInternal);
}

TEST(Check, ConditionRunsOnceAndTheReasonOnlyOnFailure) {
  int conditions = 0, reasons = 0;
  const auto reason = [&] {
    ++reasons;
    return std::string("why");
  };
  K25_CHECK(++conditions == 1, reason());
  EXPECT_EQ(conditions, 1);
  EXPECT_EQ(reasons, 0);
  EXPECT_THROW(K25_CHECK(++conditions == 1, reason()), Error);
  EXPECT_EQ(conditions, 2);
  EXPECT_EQ(reasons, 1);
}

}  // namespace
}  // namespace k25
