// Bytes over the wire and seconds, against counts by hand.
#include "trainer/plan/step_work.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/trainer/plan/plan_config.h"
#include "trainer/config/parse.h"
#include "trainer/train/memory_plan.h"

namespace k25::trainer {
namespace {

using plan_test::kConfig;
using plan_test::kLayer;
using plan_test::kSharded;
using plan_test::kTable;

constexpr std::int64_t kNorms = 5 * 64;  // the replicated unit

StepWork work_of(std::int64_t ranks, const std::vector<std::string>& overrides,
                 std::int64_t per_node = 8, Device device = Device::kCuda) {
  const Config config = parse_config(kConfig, "test.yaml", overrides, ranks).config;
  const Model model(
      config.model,
      {config.train.micro_batch, config.data.sequence, config.train.precision, device}, {},
      config.recompute);
  const auto options = resolve_zero(config, model, {std::int64_t{1} << 50});
  return count_step(config, model, options, {ranks, std::min(per_node, ranks)});
}

// 2 ranks, 4 micro-batches each. All sharded units are whole multiples of 2 x 4096 elements.
TEST(StepWork, TrafficOfTwoRanks) {
  const StepWork step = work_of(2, {"zero.reshard_after=step"});
  // Each unit once, in bf16, half of it from the other rank; the norms' sums in fp32.
  EXPECT_EQ(step.traffic.gathers, 4 + 1);
  EXPECT_EQ(step.traffic.gather_wire.n, kSharded / 2 * 2 + kNorms / 2 * 4);
  // Each gradient once a slot, in fp32, half of it to the other rank.
  EXPECT_EQ(step.traffic.reductions, 5);
  EXPECT_EQ(step.traffic.reduce_wire.n, kSharded / 2 * 4 + kNorms / 2 * 4);

  const StepWork each = work_of(2, {"zero.reshard_after=micro_batch"});
  EXPECT_EQ(each.traffic.gathers, 4 * 4 + 1);
  EXPECT_EQ(each.traffic.gather_wire.n, 4 * kSharded / 2 * 2 + kNorms / 2 * 4);
}

// With two buffers: embedding, both layers, head; in backward the head and the last layer are still
// there, the first layer is gathered again. From then on a micro-batch finds no unit it needs: its
// first two evict the two that are left.
TEST(StepWork, UnitsThatAreStillThereAreNotGatheredAgain) {
  const StepWork one = work_of(2, {"zero.reshard_after=forward", "train.micro_batch=8"});
  EXPECT_EQ(one.micro_batches, 1);
  EXPECT_EQ(one.traffic.gathers, 4 + 1 + 1);
  EXPECT_EQ(one.traffic.gather_wire.n, kSharded + kLayer + kNorms / 2 * 4);
}

// Two gathers of the first layer and one of the others; half of everything is this rank's.
TEST(StepWork, OffloadTraffic) {
  const std::vector<std::string> few = {"zero.reshard_after=forward", "train.micro_batch=8"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = few;
    overrides.insert(overrides.end(), more.begin(), more.end());
    return work_of(2, overrides).traffic;
  };
  const auto none = with({});
  EXPECT_EQ(none.device_to_host.n + none.host_to_device.n, 0);
  const auto optimizer = with({"offload.optimizer=host"});
  EXPECT_EQ(optimizer.device_to_host.n, kSharded / 2 * 4);
  EXPECT_EQ(optimizer.host_to_device.n, kSharded / 2 * 2);
  const auto both = with({"offload.optimizer=host", "offload.params=host"});
  EXPECT_EQ(both.device_to_host.n, kSharded / 2 * 4);
  EXPECT_EQ(both.host_to_device.n, (kSharded + kLayer) / 2 * 2);
  const auto params = with({"offload.params=host"});
  EXPECT_EQ(params.device_to_host.n, kSharded / 2 * (4 + 2));
  EXPECT_EQ(params.host_to_device.n, (kSharded + kLayer) / 2 * 2 + kSharded / 2 * 4);
  EXPECT_EQ(with({"offload.optimizer=host", "offload.resident=1"}).device_to_host.n, 0);
}

TEST(StepWork, OneRankMovesNothing) {
  const StepWork step = work_of(1, {});
  EXPECT_EQ(step.traffic.gather_wire.n, 0);
  EXPECT_EQ(step.traffic.reduce_wire.n, 0);
  EXPECT_GT(step.traffic.gathers, 0);  // bf16 copies of fp32 masters
}

TEST(StepWork, NetworkCardsCarryWhatLeavesTheNode) {
  // Four ranks in two nodes: a gather brings half of everything into a node, over its two cards;
  // the ordered sum sends two of four slices away.
  const StepWork step = work_of(4, {"zero.reshard_after=step"}, 2);
  const std::int64_t gathered = kSharded * 2 + kNorms * 4;
  EXPECT_EQ(step.gather_network.n, gathered / 2 / 2);
  EXPECT_EQ(step.reduce_network.n, 2 * (kSharded / 4 + kNorms / 4) * 4);
  EXPECT_EQ(work_of(4, {}, 4).gather_network.n + work_of(4, {}, 4).reduce_network.n, 0);
}

TEST(StepWork, BytesOfElementwiseKernels) {
  const StepWork step = work_of(1, {"train.micro_batch=1"});
  // One sequence of 32 rows, bf16: forward of a layer 8 D + 2 (q + k) + 3 F, of the ends 4 D and
  // fp32 logits.
  const std::int64_t d = 64 * 2, f = 192 * 2, qk = 2 * 3 * 32 * 2;
  EXPECT_EQ(step.forward.moved.n, 32 * (2 * (8 * d + qk + 3 * f) + 4 * d + 256 * 4));
  EXPECT_EQ(step.backward.moved.n, 32 * (2 * (8 * d + qk + 5 * f) + 5 * d + 256 * 6));
  const StepWork again = work_of(1, {"train.micro_batch=1", "recompute.layers=[2]"});
  EXPECT_EQ(again.backward.moved.n - step.backward.moved.n, 32 * (6 * d + qk + 3 * f));
  EXPECT_EQ(again.forward.moved.n, step.forward.moved.n);
}

TEST(StepWork, BytesOfKdaAndExperts) {
  const auto moved = [](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {"train.micro_batch=1", "model.pattern=[kda/swiglu]"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const StepWork step = work_of(1, overrides, 8, Device::kCpu);
    return std::pair{step.forward.moved.n / 32, step.backward.moved.n / 32};  // of a row
  };
  const std::int64_t d = 64 * 2, f = 192 * 2, ends = 4 * d + 256 * 4, back = 5 * d + 256 * 6;
  // kda, 2 heads of 32: q, k, v, f, gate, o each 64 in bf16, that is `d` bytes; g and its gradient
  // 64 in fp32, `g` bytes. Convolution 6, norms of q and k 4, f and g, q k v g o, o gate y.
  const std::int64_t g = 64 * 4;
  const std::int64_t kda = (6 + 4 + 1 + 4 + 3) * d + 2 * g;
  // Gated norm 5; f and g; q k v do dq dk dv, g dg; norms 6, convolution 9; dg f df.
  const std::int64_t kda_back = (5 + 1 + 7 + 6 + 9 + 2) * d + (1 + 2 + 1) * g;
  EXPECT_EQ(moved({}),
            (std::pair{2 * (8 * d + kda + 3 * f) + ends, 2 * (8 * d + kda_back + 5 * f) + back}));
  EXPECT_EQ(moved({"recompute.layers=[1]"}).second - moved({}).second, 6 * d + kda + 3 * f);
  EXPECT_EQ(moved({"recompute.cheap=true"}).second - moved({}).second, 2 * (4 * d + 3 * d + f));

  // 4 experts, 2 a token, 24 wide inside, and one shared: scores 4 in fp32 in place, 2 rows there
  // and combined, three gate|up|act rows, the sum.
  const std::int64_t e = 24 * 2, router = 4 * 8;
  const std::int64_t moe = router + (2 * 2 + 2 + 1 + 3) * d + 3 * 3 * e;
  const std::int64_t moe_back = router + 4 * 6 + (2 * 2 + 3 * 2 + 2 + 1 + 6) * d + 3 * 5 * e;
  const std::string keys = "experts: 4, per_token: 2, ffn: 24, shared_experts: 1";
  EXPECT_EQ(moved({"model.pattern=[kda/moe]", "model.moe={" + keys + "}"}),
            (std::pair{2 * (8 * d + kda + moe) + ends, 2 * (8 * d + kda_back + moe_back) + back}));
  // Half as wide, with a norm; dispatch and combine are, not the sum.
  const auto latent = moved({"model.pattern=[kda/moe]", "model.moe={" + keys + ", latent: 32}"});
  EXPECT_EQ(latent.first, 2 * (8 * d + kda + moe - 7 * d / 2 + d) + ends);
  EXPECT_EQ(latent.second, 2 * (8 * d + kda_back + moe_back - 13 * d / 2 + 3 * d / 2) + back);
}

TEST(StepWork, BytesOfLatentAttention) {
  const auto moved = [](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {"train.micro_batch=1", "model.pattern=[mla/swiglu]"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const StepWork step = work_of(1, overrides, 8, Device::kCpu);
    return std::pair{step.forward.moved.n / 32, step.backward.moved.n / 32};  // of a row
  };
  const std::int64_t d = 64 * 2, f = 192 * 2, ends = 4 * d + 256 * 4, back = 5 * d + 256 * 6;
  const auto expect = [&](std::int64_t forward, std::int64_t backward) {
    return std::pair{2 * (8 * d + forward + 3 * f) + ends, 2 * (8 * d + backward + 5 * f) + back};
  };
  // bf16. The norm of 24 columns reads and writes; backward reads two and writes one.
  EXPECT_EQ(moved({"model.mla={kv_rank: 24}"}), expect(2 * 48, 3 * 48));
  // Own parts of 2 heads 32 wide copied; the shared one, 8 wide, read once and written twice.
  const std::int64_t keys = 2 * 2 * 64 + 3 * 16;
  const std::string shared = "kv_rank: 24, rope_head_dim: 8, q_rank: 16";
  EXPECT_EQ(moved({"model.mla={" + shared + ", positions: none}"}),
            expect(2 * 80 + keys, 3 * 80 + keys));
  const std::int64_t rotated = 2 * 3 * 16;  // two of q and one of k, in place
  const auto rope = moved({"model.mla={" + shared + "}"});
  EXPECT_EQ(rope, expect(2 * 80 + keys + rotated, 3 * 80 + keys + rotated));
  EXPECT_EQ(moved({"model.mla={" + shared + "}", "recompute.cheap=true"}).second - rope.second,
            2 * (4 * d + 2 * 80 + keys + f));
}

TEST(StepWork, UpdateMovesStateAndGradients) {
  const StepWork step = work_of(1, {});
  // AdamW 28 bytes an element and 2 for its bf16 copy, its norm 4. One rank with one slot forms its
  // gradients in the shard.
  EXPECT_EQ(step.update.n, kSharded * (28 + 4 + 2));
  // Two buffers in turn: the copy is formed anew (4 bytes read, 2 written) at each gather.
  const StepWork turns = work_of(1, {"train.micro_batch=16", "zero.reshard_after=forward"});
  EXPECT_EQ(turns.update.n, kSharded * (28 + 4) + (kSharded + kLayer) * (4 + 2));
  const StepWork fp32 = work_of(2, {"train.precision=fp32", "zero.reshard_after=step"});
  EXPECT_EQ(fp32.traffic.formed.n, kSharded / 2 * (4 + 4));
  // Two slots: the sums' shard is zeroed, the whole gradient is looked at, and added up (read once,
  // accumulator read and written), for each of them.
  const StepWork slots = work_of(
      1, {"train.micro_batch=1", "train.accumulation=2", "train.batch=auto", "reduce.slots=2"});
  EXPECT_EQ(slots.update.n,
            kSharded * (28 + 4 + 4) + 2 * (kSharded + kNorms) * (4 + 12) + kSharded * 2);
}

Card round_card() {
  return {.name = "round",
          .ceilings = {.copy_gb = 1,
                       .gemm_tflop = 2,
                       .attention_forward_tflop = 4,
                       .attention_backward_tflop = 5,
                       .all_gather_gb = 10,
                       .reduce_scatter_gb = 20},
          .network_gb = 0.5};
}

StepWork round_work() {
  StepWork w;
  w.micro_batches = 2;
  w.forward = {.product_flops = 4'000'000'000'000,
               .attention_forward_flops = 4'000'000'000'000,
               .moved = Bytes{1'000'000'000}};
  w.backward = {.product_flops = 8'000'000'000'000,
                .attention_backward_flops = 10'000'000'000'000,
                .moved = Bytes{2'000'000'000}};
  w.update = Bytes{3'000'000'000};
  w.traffic.gather_wire = Bytes{50'000'000'000};
  w.traffic.reduce_wire = Bytes{40'000'000'000};
  w.gathering_forwards = w.gathering_backwards = 2;
  w.reducing_backwards = 1;
  return w;
}

TEST(PredictStep, EveryPartAtItsCeiling) {
  std::string why;
  const auto time = predict_step(round_work(), round_card(), DType::kBFloat16, 1, why);
  ASSERT_TRUE(time.has_value()) << why;
  EXPECT_DOUBLE_EQ(time->products, 2 * (2 + 4));
  EXPECT_DOUBLE_EQ(time->attention, 2 * (1 + 2));
  EXPECT_DOUBLE_EQ(time->moved, 2 * (1 + 2) + 3);
  EXPECT_DOUBLE_EQ(time->gather, 5);
  EXPECT_DOUBLE_EQ(time->reduce, 2);
  EXPECT_DOUBLE_EQ(time->exposed, 0);  // 2 x (4 + 8) s and 8 s of computing hide them
  EXPECT_DOUBLE_EQ(time->total(), 12 + 6 + 9);
}

TEST(PredictStep, WhatComputingCannotHideIsExposed) {
  std::string why;
  StepWork work = round_work();
  EXPECT_DOUBLE_EQ(predict_step(work, round_card(), DType::kBFloat16, 0, why)->exposed, 5);
  work.traffic.gather_wire = Bytes{300'000'000'000};  // 30 s beside 24
  work.traffic.reduce_wire = Bytes{200'000'000'000};  // 10 s beside 8
  EXPECT_DOUBLE_EQ(predict_step(work, round_card(), DType::kBFloat16, 1, why)->exposed, 6 + 2);
  work = round_work();
  work.gather_network = Bytes{15'000'000'000};  // 30 s at 0.5 GB/s
  EXPECT_DOUBLE_EQ(predict_step(work, round_card(), DType::kBFloat16, 1, why)->gather, 30);
}

TEST(PredictStep, UnknownCeilingsGiveNoNumber) {
  std::string why;
  Card card = round_card();
  card.ceilings.gemm_tflop.reset();
  card.ceilings.all_gather_gb.reset();
  EXPECT_FALSE(predict_step(round_work(), card, DType::kBFloat16, 1, why).has_value());
  EXPECT_EQ(why, "not known: matrix product, all-gather");
  EXPECT_FALSE(predict_step(round_work(), round_card(), DType::kFloat32, 1, why).has_value());
  EXPECT_EQ(why, "ceilings are for bf16, train.precision is fp32");
}

}  // namespace
}  // namespace k25::trainer
