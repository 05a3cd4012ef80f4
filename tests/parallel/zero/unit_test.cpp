#include "parallel/zero/unit.h"

#include <gtest/gtest.h>

#include "kernels/core/check.h"
#include "tests/parallel/zero/toy.h"

namespace k25::parallel {
namespace {

UnitSpec unit_of(std::vector<ParameterSpec> parameters) {
  return {"block", Placement::kSharded, std::move(parameters)};
}

std::string internal_error(const UnitSpec& unit) {
  try {
    make_layout(unit, 2, DType::kBFloat16);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInternal);
    return e.what();
  }
  return "no error";
}

TEST(Unit, ParametersStartOnBordersAndShardsAreWholeChunks) {
  const UnitSpec unit = unit_of({toy_parameter("a", {3}), toy_parameter("b", {64}),
                                 toy_parameter("c", {65}), toy_parameter("d", {100, 100})});
  const UnitLayout one = make_layout(unit, 1, DType::kFloat32);
  EXPECT_EQ(one.offsets, (std::vector<std::int64_t>{0, 64, 128, 256}));
  EXPECT_EQ(one.numel, 10256);
  EXPECT_EQ(one.shard_elems, 3 * 4096);
  EXPECT_EQ(one.padded(), 3 * 4096);

  const UnitLayout two = make_layout(unit, 2, DType::kFloat32);
  EXPECT_EQ(two.offsets, one.offsets);  // the layout does not depend on the rank count
  EXPECT_EQ(two.shard_elems, 2 * 4096);
  EXPECT_EQ(two.padded(), 4 * 4096);
}

TEST(Unit, ExactMultipleNeedsNoPadding) {
  const UnitLayout layout =
      make_layout(unit_of({toy_parameter("a", {3, 4096})}), 3, DType::kFloat32);
  EXPECT_EQ(layout.shard_elems, 4096);
  EXPECT_EQ(layout.padded(), layout.numel);
}

TEST(Unit, FewerElementsThanRanksGivesEveryRankAChunk) {
  const UnitLayout layout = make_layout(unit_of({toy_parameter("a", {3})}), 7, DType::kFloat32);
  EXPECT_EQ(layout.numel, 3);
  EXPECT_EQ(layout.shard_elems, 4096);
  EXPECT_EQ(layout.padded(), 7 * 4096);
}

// Held whole by every rank, so ranks must not make it larger.
TEST(Unit, AReplicatedUnitHardlyGrowsWithTheRanks) {
  UnitSpec unit = unit_of({toy_parameter("a", {10000})});
  unit.placement = Placement::kReplicated;
  for (const std::int64_t ranks : {1, 2, 3, 8, 64, 512}) {
    const UnitLayout layout = make_layout(unit, ranks, DType::kFloat32);
    EXPECT_GE(ranks * layout.shard_elems, 10000);
    EXPECT_LT(ranks * layout.shard_elems, 10000 + 4 * ranks);
    EXPECT_EQ(layout.padded(), 3 * 4096) << ranks;
    EXPECT_GE(ranks * layout.owned_elems, 10000);
    EXPECT_EQ(layout.owned_elems % 4096, 0);
  }
}

TEST(Unit, ParametersWithoutElementsTakeNoRoom) {
  const UnitLayout layout = make_layout(
      unit_of({toy_parameter("a", {4096}), toy_parameter("b", {0, 8}), toy_parameter("c", {0})}), 1,
      DType::kFloat32);
  EXPECT_EQ(layout.numel, 4096);
  EXPECT_EQ(layout.padded(), 4096);
  EXPECT_EQ(make_layout(unit_of({toy_parameter("b", {0, 8})}), 4, DType::kFloat32).padded(), 0);
  EXPECT_EQ(make_layout(unit_of({}), 4, DType::kFloat32).padded(), 0);
}

TEST(Unit, ScalarHasOneElement) {
  EXPECT_EQ(make_layout(unit_of({toy_parameter("s", {})}), 1, DType::kFloat32).numel, 1);
}

TEST(Unit, ComputeDtypeFollowsTheKeepList) {
  ParameterSpec kept = toy_parameter("a", {3});
  kept.fp32 = true;
  EXPECT_EQ(make_layout(unit_of({kept}), 2, DType::kBFloat16).compute, DType::kFloat32);
  EXPECT_EQ(make_layout(unit_of({toy_parameter("b", {3})}), 2, DType::kBFloat16).compute,
            DType::kBFloat16);
  const UnitSpec replicated{"norms", Placement::kReplicated, {kept, toy_parameter("b", {3})}};
  EXPECT_EQ(make_layout(replicated, 2, DType::kBFloat16).compute, DType::kFloat32);
}

TEST(Unit, RefusesAMixOfKeptAndOtherParameters) {
  ParameterSpec a = toy_parameter("router.bias", {3}), b = toy_parameter("router.decay", {3});
  a.fp32 = b.fp32 = true;
  const std::string message = internal_error(unit_of({toy_parameter("ffn.up", {3}), a, b}));
  EXPECT_NE(message.find("unit block"), std::string::npos) << message;
  EXPECT_NE(message.find("(router.bias, router.decay)"), std::string::npos) << message;
  EXPECT_NE(message.find("(ffn.up)"), std::string::npos) << message;
}

TEST(Unit, RefusesTiedParametersAndBadShapes) {
  ParameterSpec tied = toy_parameter("head", {4, 4});
  tied.tied_to = "embedding";
  const std::string message = internal_error(unit_of({tied}));
  EXPECT_NE(message.find("head is tied to embedding"), std::string::npos) << message;

  const std::string negative = internal_error(unit_of({toy_parameter("a", {4, -1})}));
  EXPECT_NE(negative.find("[4, -1]"), std::string::npos) << negative;
  EXPECT_THROW(make_layout(unit_of({}), 0, DType::kFloat32), Error);
  EXPECT_THROW(make_layout(unit_of({}), 1, DType::kFloat64), Error);
}

}  // namespace
}  // namespace k25::parallel
