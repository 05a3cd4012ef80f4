// The gradients of a whole batch do not depend on how it is cut into micro-batches, slots and
// ranks: to 1e-6 of a unit's largest, element by element. One sequence a micro-batch and 24 slots
// is the cut whose bits are those of one rank (parallel/zero/zero_store_mpi_test,
// system/determinism_test).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/mpi_main.h"
#include "tests/trainer/model/small_batch.h"
#include "trainer/model/model.h"
#include "trainer/train/batch_upload.h"

namespace k25::trainer {
namespace {

using model_test::kT;
using model_test::kV;

constexpr std::int64_t kSequences = 24;

/// Sequence s of the batch: two documents; s % kT + 1 labels at most, none in every seventh.
void write_sequence(std::int64_t s, std::int64_t row, data::Batch& batch) {
  const auto middle = static_cast<std::int32_t>(1 + s % (kT - 1));
  for (std::int32_t t = 0; t < kT; ++t) {
    const auto at = static_cast<std::size_t>(row * kT + t);
    const auto token = [&](std::int64_t i) {
      return static_cast<std::int32_t>((7 * i + 11 * s + i * i) % kV);
    };
    const bool second = t >= middle;
    const std::int32_t end = second ? kT : middle;
    batch.tokens[at] = token(t);
    batch.labels[at] = t + 1 < end && t <= s % kT && s % 7 != 3 ? token(t + 1) : -1;
    batch.doc_begin[at] = second ? middle : 0;
    batch.doc_end[at] = end;
    batch.position[at] = t - batch.doc_begin[at];
  }
}

struct FirstStep {
  std::vector<std::vector<float>> gradients;  ///< this rank's shards, per unit
  std::int64_t labels = 0;                    ///< of this rank
};

FirstStep first_step(parallel::Mesh& mesh, const ModelConfig& config, std::int64_t micro_batch,
                     std::int64_t slots) {
  HostAllocator allocator;
  Context context{.isa = detect_cpu_isa()};
  Model model(config, {micro_batch, kT, DType::kFloat32}, {}, {});
  model.allocate(context, allocator);
  const std::int64_t per_slot = kSequences / micro_batch / slots;
  parallel::ZeroStore store(mesh, model.units(),
                            {.slots = slots, .micro_batches_per_slot = per_slot}, context,
                            allocator);
  initialize_parameters(store, 7);
  data::Batch batch;
  batch.resize(micro_batch, kT);
  FirstStep result;
  store.begin_step();
  for (std::int64_t slot = mesh.data_rank(); slot < slots; slot += mesh.data_ranks()) {
    for (std::int64_t j = 0; j < per_slot; ++j) {
      for (std::int64_t row = 0; row < micro_batch; ++row) {
        write_sequence((slot * per_slot + j) * micro_batch + row, row, batch);
      }
      result.labels += std::count_if(batch.labels.begin(), batch.labels.end(),
                                     [](std::int32_t label) { return label >= 0; });
      model.forward(context, store, batch_tensors(batch), Model::Purpose::kTrain);
      model.backward(context, store, batch_tensors(batch));
      store.end_micro_batch();
    }
  }
  store.finish_gradients();
  for (int u = 0; u < store.num_units(); ++u) {
    const Tensor g = store.shard_gradient(u);
    result.gradients.emplace_back(g.data<float>(), g.data<float>() + g.numel());
  }
  store.end_step();
  return result;
}

void check_cuts(const ModelConfig& config) {
  parallel::World& world = parallel::test_world();
  parallel::Mesh mesh(world, {.shard = world.size()});
  const FirstStep want = first_step(mesh, config, 1, kSequences);
  int cuts = 0;
  for (const std::int64_t micro_batch : {1, 2, 3, 4, 6, 8, 12, 24}) {
    if (kSequences % (micro_batch * world.size()) != 0) continue;
    const FirstStep got = first_step(mesh, config, micro_batch, world.size());
    for (std::size_t u = 0; u < want.gradients.size(); ++u) {
      double largest = 0.0, furthest = 0.0;
      ASSERT_EQ(got.gradients[u].size(), want.gradients[u].size());
      for (std::size_t i = 0; i < want.gradients[u].size(); ++i) {
        const double is = got.gradients[u][i], should = want.gradients[u][i];
        largest = std::max(largest, std::abs(should));
        furthest = std::max(furthest, std::abs(is - should));
      }
      double numbers[] = {largest, furthest};
      world.comm()
          .all_reduce_small({.name = "largest"},
                            {.values = numbers, .count = 2, .op = parallel::ReduceOp::kMax})
          .wait();
      EXPECT_GT(numbers[0], 1e-3) << "unit " << u;
      EXPECT_LE(numbers[1], 1e-6 * numbers[0])
          << "unit " << u << ", micro-batches of " << micro_batch;
    }
    ++cuts;
  }
  EXPECT_GE(cuts, 4);
  std::int64_t labels[] = {want.labels, want.labels};
  world.comm()
      .all_reduce_small({.name = "fewest"},
                        {.integers = labels, .count = 1, .op = parallel::ReduceOp::kMin})
      .wait();
  world.comm()
      .all_reduce_small({.name = "most"},
                        {.integers = labels + 1, .count = 1, .op = parallel::ReduceOp::kMax})
      .wait();
  if (world.size() > 1) {
    EXPECT_LT(labels[0], labels[1]) << "ranks must have unequal label counts";
  }
}

TEST(FirstStepMpi, GradientsDoNotDependOnTheCut) { check_cuts(model_test::small_model(2)); }

TEST(FirstStepMpi, NorDoThoseOfKdaAndExperts) {
  check_cuts(model_test::hybrid_model());
  check_cuts(model_test::latent_model());
}

TEST(FirstStepMpi, NorDoThoseOfLatentAttention) {
  check_cuts(model_test::mla_rope_model());
  check_cuts(model_test::mla_shared_model());
}

}  // namespace
}  // namespace k25::trainer
