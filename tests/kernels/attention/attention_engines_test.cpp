// The table's strings. What cuDNN says to a stored engine: attention_cudnn_test.

#include "kernels/attention/attention_engines.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::throws_error;
using Strings = std::vector<std::string>;

AttentionEngineKey backward() {
  return {.direction = AttentionDirection::kBackward,
          .batch = 4,
          .tokens = 4096,
          .heads = 16,
          .kv_heads = 8,
          .head_dim = 128,
          .document_stride = 4096,
          .q = {16777216, 4096, 128},
          .k = {1, 2, 3},
          .v = {4, 5, 6},
          .out = {7, 8, 9},
          .dout = {10, 11, 12},
          .dq = {13, 14, 15},
          .dk = {16, 17, 18},
          .dv = {19, 20, 21}};
}

constexpr const char* kBackward =
    "backward b=4 t=4096 h=16 kv=8 e=128 doc=4096 q=16777216,4096,128 k=1,2,3 v=4,5,6 out=7,8,9 "
    "dout=10,11,12 dq=13,14,15 dk=16,17,18 dv=19,20,21 cudnn=91400";
constexpr const char* kForward =
    "forward b=1 t=512 h=2 kv=1 e=64 doc=0 q=1,2,3 k=1,2,3 v=1,2,3 out=1,2,3 dout=0,0,0 dq=0,0,0 "
    "dk=0,0,0 dv=0,0,0 cudnn=91400";

TEST(AttentionEngines, EntriesAreWrittenAsDocumented) {
  const std::string head = kBackward;
  EXPECT_EQ(attention_engine_string(backward(), {.library = 91400, .engine = {}}), head + " own");
  EXPECT_EQ(attention_engine_string(
                backward(), {.library = 91400, .engine = CudnnEngine{.index = 5, .knobs = {}}}),
            head + " engine=5 knobs=");
  EXPECT_EQ(attention_engine_string(
                backward(),
                {.library = 91400, .engine = CudnnEngine{.index = 5, .knobs = {{0, 1}, {27, -3}}}}),
            head + " engine=5 knobs=0:1,27:-3");
}

TEST(AttentionEngines, WhatWasWrittenIsReadBack) {
  const Strings stored{std::string(kForward) + " own",
                       std::string(kBackward) + " engine=5 knobs=0:1,27:-3"};
  AttentionEngines table;
  table.load(stored);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.to_strings(), stored);  // forward comes first
  AttentionEngines again;
  again.load(table.to_strings());
  EXPECT_EQ(again.to_strings(), stored);
}

TEST(AttentionEngines, MalformedEntriesAreRefused) {
  const std::string good = std::string(kForward) + " engine=5 knobs=0:1,7:3";
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  const Strings bad{"",
                    "x",
                    kForward,
                    " " + good,
                    good + " ",
                    good + ",",
                    good + ":1",
                    good + " own",
                    std::string(kForward) + " own ",
                    std::string(kForward) + " engine=5",
                    with("forward", "sideways"),
                    with("b=1", "b=0"),
                    with("t=512", "t=0512"),
                    with("h=2", "h=-2"),
                    with("e=64", "e=9223372036854775808"),
                    with("doc=0", "doc=-1"),
                    with("q=1,2,3", "q=1,2"),
                    with("q=1,2,3", "q=1,2,3,4"),
                    with("cudnn=91400", "cudnn=-1"),
                    with("cudnn=91400 ", ""),
                    with("engine=5", "engine=-5"),
                    with("engine=5", "engine=+5"),
                    with("0:1,7:3", "0:1,,7:3"),
                    with("0:1,7:3", "0:1,7"),
                    with("0:1,7:3", "0:01")};
  for (const std::string& text : bad) {
    AttentionEngines table;
    EXPECT_TRUE(throws_error([&] { table.load(Strings{std::string(kBackward) + " own", text}); },
                             ErrorKind::kUsage,
                             {"stored attention engine '" + text + "'", "remove the entry"}))
        << text;
    EXPECT_EQ(table.size(), 0u) << "a refused list leaves the table as it was";
  }
}

TEST(AttentionEngines, TwoForOneShapeAreRefused) {
  AttentionEngines table;
  table.load(Strings{std::string(kForward) + " own"});
  const std::string second = std::string(kForward) + " engine=5 knobs=";
  EXPECT_TRUE(throws_error([&] { table.load(Strings{second}); }, ErrorKind::kUsage,
                           {second, "a second one"}));
  EXPECT_EQ(table.to_strings(), Strings{std::string(kForward) + " own"});
}

}  // namespace
}  // namespace k25::kernels
