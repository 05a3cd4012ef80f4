// The planned gathers and reductions are the collectives that a step starts, whatever the options.

#include <gtest/gtest.h>

#include <sstream>

#include "tests/mpi_main.h"
#include "tests/trainer/model/small_batch.h"
#include "trainer/plan/step_work.h"
#include "trainer/train/batch_upload.h"
#include "trainer/train/memory_plan.h"

namespace k25::trainer {
namespace {

using model_test::kB;
using model_test::kT;
using parallel::ReduceAfter;
using parallel::ReshardAfter;

struct Calls {
  std::int64_t gathers = 0, reductions = 0;
};

/// Collectives of the log behind its last barrier of that name.
Calls calls_since(const std::string& dump, const std::string& barrier) {
  Calls calls;
  std::istringstream lines(dump.substr(dump.rfind(barrier)));
  for (std::string line; std::getline(lines, line);) {
    calls.gathers += line.find(" all_gather ") != std::string::npos ? 1 : 0;
    calls.reductions += line.find(" reduce_scatter ") != std::string::npos ? 1 : 0;
  }
  return calls;
}

Config config_of(int ranks, std::int64_t micro_batches) {
  Config config;
  config.model = model_test::small_model(5);
  config.data.sequence = kT;
  config.train.precision = DType::kBFloat16;
  config.train.micro_batch = kB;
  config.train.accumulation = micro_batches;
  config.train.batch = kB * micro_batches * ranks;
  config.mesh.shard = ranks;
  return config;
}

class Traffic : public ::testing::TestWithParam<std::tuple<ReshardAfter, int, int, bool>> {};

TEST_P(Traffic, IsWhatAStepMoves) {
  const auto [reshard, prefetch, micro_batches, tied] = GetParam();
  parallel::World& world = parallel::test_world();
  Config config = config_of(world.size(), micro_batches);
  config.model.tie_embeddings = tied;
  parallel::Mesh mesh(world, config.mesh);
  HostAllocator allocator;
  Context context{.isa = detect_cpu_isa()};
  Model model(config.model, {kB, kT, config.train.precision}, {}, {});
  const parallel::ZeroOptions options{.reshard_after = reshard,
                                      .prefetch = prefetch,
                                      .open_gradients = tied ? 1 : 0,
                                      .slots = world.size(),
                                      .micro_batches_per_slot = micro_batches,
                                      .compute = config.train.precision};
  const StepWork planned = count_step(config, model, options, {world.size(), world.size()});

  model.allocate(context, allocator);
  parallel::ZeroStore store(mesh, model.units(), options, context, allocator);
  initialize_parameters(store, 7);
  const data::Batch batch = model_test::small_batch();
  for (const char* barrier : {"first step", "second step"}) {
    world.comm().barrier(barrier, world.comm().default_deadline());
    store.begin_step();
    for (int i = 0; i < micro_batches; ++i) {
      model.forward(context, store, batch_tensors(batch), Model::Purpose::kTrain);
      model.backward(context, store, batch_tensors(batch));
      store.end_micro_batch();
    }
    store.finish_gradients();
    store.end_step();
    const Calls calls = calls_since(world.dump(), barrier);
    EXPECT_EQ(planned.traffic.gathers, calls.gathers) << barrier;
    EXPECT_EQ(planned.traffic.reductions, calls.reductions) << barrier;
  }
}

INSTANTIATE_TEST_SUITE_P(Options, Traffic,
                         ::testing::Combine(::testing::Values(ReshardAfter::kForward,
                                                              ReshardAfter::kMicroBatch,
                                                              ReshardAfter::kStep),
                                            ::testing::Values(0, 1, 2), ::testing::Values(1, 2, 6),
                                            ::testing::Values(false, true)));

}  // namespace
}  // namespace k25::trainer
