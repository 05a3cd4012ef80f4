#include "kernels/sequences/sequences.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::GuardedTensor;
using op_test::throws_error;

const ErrorKind kUsage = ErrorKind::kUsage;

TEST(Sequences, Shapes) {
  EXPECT_EQ((SequenceShape{.batch = 3, .tokens = 5}.count()), 3);
  EXPECT_EQ((SequenceShape{.batch = 1, .tokens = 5, .sequences = 7}.count()), 7);
  check_sequence_shape("op", {.batch = 0, .tokens = 0});
  check_sequence_shape("op", {.batch = 1, .tokens = 0, .sequences = 4});
  const auto refused = [](SequenceShape s, std::initializer_list<std::string_view> parts) {
    EXPECT_TRUE(throws_error([&] { check_sequence_shape("op", s); }, kUsage, parts));
  };
  refused({.batch = -1}, {"op: batch -1", "negative"});
  refused({.batch = 1, .tokens = -2}, {"tokens -2"});
  refused({.batch = 1, .tokens = std::int64_t{1} << 31}, {"2^31 - 1"});
  refused({.batch = 2, .tokens = 1, .sequences = 3}, {"3 packed", "batch of 2"});
  refused({.batch = 0, .tokens = 1, .sequences = 3}, {"batch of 0"});
  refused({.batch = 1, .tokens = 1, .sequences = -1}, {"-1 packed"});
}

TEST(Sequences, Borders) {
  const SequenceShape shape{.batch = 1, .tokens = 10, .sequences = 3};
  const auto check = [&](const std::vector<double>& values) {
    const GuardedTensor border(DType::kInt32, {static_cast<std::int64_t>(values.size())}, values);
    check_sequence_borders("op", shape, {.border_S1 = border}, Device::kCpu);
  };
  check({0, 0, 10, 10});
  check({0, 3, 4, 10});
  const auto refused = [&](const std::vector<double>& values,
                           std::initializer_list<std::string_view> parts) {
    EXPECT_TRUE(throws_error([&] { check(values); }, kUsage, parts));
  };
  refused({0, 3, 10}, {"border_S1 is int32 [3]", "expected int32 [4]"});
  refused({1, 3, 4, 10}, {"border 0 is 1", "rise from 0"});
  refused({0, 4, 3, 10}, {"border 2 is 3", "one before is 4"});
  refused({0, 4, 5, 11}, {"border 3 is 11", "10 tokens"});
  refused({0, 11, 10, 10}, {"border 2 is 10", "one before is 11"});
  EXPECT_TRUE(throws_error([&] { check_sequence_borders("op", shape, {}, Device::kCpu); }, kUsage,
                           {"border_S1 is missing"}));
  const GuardedTensor border(DType::kInt32, {4}, std::vector<double>{0, 1, 2, 10});
  const GuardedTensor document(DType::kInt32, {1, 10});
  EXPECT_TRUE(throws_error(
      [&] { check_sequence_borders("op", shape, {border, document, document}, Device::kCpu); },
      kUsage, {"leave doc_begin and doc_end out"}));
  EXPECT_TRUE(throws_error(
      [&] {
        check_sequence_borders("op", {.batch = 1, .tokens = 10}, {border, {}, {}}, Device::kCpu);
      },
      kUsage, {"border_S1 needs desc.sequences"}));
}

TEST(Sequences, Documents) {
  const SequenceShape shape{.batch = 2, .tokens = 4};
  const auto check = [&](const std::vector<double>& begins, const std::vector<double>& ends) {
    const GuardedTensor begin(DType::kInt32, {2, 4}, begins, {.row_padding = 1});
    const GuardedTensor end(DType::kInt32, {2, 4}, ends, {.row_padding = 2});
    check_sequence_borders("op", shape, {{}, begin, end}, Device::kCpu);
  };
  const std::vector<double> begins{0, 0, 2, 3, 0, 0, 0, 0}, ends{2, 2, 3, 4, 4, 4, 4, 4};
  check(begins, ends);
  const auto refused = [&](std::size_t at, double begin, double end,
                           std::initializer_list<std::string_view> parts) {
    auto b = begins, e = ends;
    b[at] = begin;
    e[at] = end;
    EXPECT_TRUE(throws_error([&] { check(b, e); }, kUsage, parts));
  };
  refused(1, 1, 2, {"row 0, token 1", "[1, 2)", "disagrees"});
  refused(1, 0, 3, {"row 0, token 1", "disagrees"});
  refused(2, 1, 3, {"row 0, token 2", "disagrees"});
  refused(3, 3, 5, {"row 0, token 3", "leaves the row of 4"});
  refused(4, -1, 4, {"row 1, token 0", "does not hold"});
  refused(5, 2, 4, {"row 1, token 1", "does not hold"});
  refused(7, 0, 3, {"row 1, token 3", "does not hold"});
  const GuardedTensor begin(DType::kInt32, {2, 4}, begins);
  EXPECT_TRUE(
      throws_error([&] { check_sequence_borders("op", shape, {{}, begin, {}}, Device::kCpu); },
                   kUsage, {"come together or not at all"}));
  const GuardedTensor wide(DType::kInt64, {2, 4}, begins);
  EXPECT_TRUE(
      throws_error([&] { check_sequence_borders("op", shape, {{}, wide, wide}, Device::kCpu); },
                   kUsage, {"doc_begin_BT is int64 [2, 4]"}));
}

}  // namespace
}  // namespace k25::kernels
