// What a layer keeps changes memory, never a bit.

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "parallel/comm/world.h"
#include "tests/trainer/model/small_batch.h"
#include "trainer/model/model.h"
#include "trainer/train/batch_upload.h"

namespace k25::trainer {
namespace {

using model_test::kB;
using model_test::kT;

class Recompute : public testing::TestWithParam<DType> {
 protected:
  struct Result {
    std::vector<float> nll, gradients;
    std::vector<std::int64_t> load;  ///< of experts
    ModelMemory memory;
  };

  /// One micro-batch; between forward and backward, `between` may touch the store.
  template <class Between>
  Result run(const RecomputeConfig& recompute, const Between& between,
             const ModelConfig& config = model_test::small_model(3)) {
    HostAllocator allocator;
    Context context{.isa = detect_cpu_isa()};
    Model model(config, {kB, kT, GetParam()}, {}, recompute);
    model.allocate(context, allocator);
    parallel::ZeroStore store(mesh_, model.units(), {.compute = GetParam()}, context, allocator);
    initialize_parameters(store, 7);
    const data::Batch batch = model_test::small_batch();
    store.begin_step();
    const Model::Output output =
        model.forward(context, store, batch_tensors(batch), Model::Purpose::kTrain);
    Result result{.memory = model.memory()};
    result.nll.assign(output.nll_N.data<float>(), output.nll_N.data<float>() + kB * kT);
    between(store);
    model.backward(context, store, batch_tensors(batch));
    store.end_micro_batch();
    store.finish_gradients();
    for (int u = 0; u < store.num_units(); ++u) {
      const Tensor g = store.shard_gradient(u);
      result.gradients.insert(result.gradients.end(), g.data<float>(), g.data<float>() + g.numel());
    }
    store.end_step();
    if (const Tensor& load = model.expert_load()) {
      result.load.assign(load.data<std::int64_t>(), load.data<std::int64_t>() + load.numel());
    }
    return result;
  }
  Result run(const RecomputeConfig& recompute,
             const ModelConfig& config = model_test::small_model(3)) {
    return run(recompute, [](parallel::ZeroStore&) {}, config);
  }

  std::unique_ptr<parallel::World> world_ = parallel::World::create({});
  parallel::Mesh mesh_{*world_, {}};
};

TEST_P(Recompute, AnySelectionGivesTheSameBits) {
  const Result plain = run({});
  const RecomputeConfig selections[] = {
      {.layers = {{1, 3}}},
      {.layers = {{2, 2}}},
      {.layers = {{1, 1}, {3, 3}}, .check = true},
      {.cheap = true},
      {.layers = {{3, 3}}, .cheap = true, .check = true},
  };
  for (const RecomputeConfig& selection : selections) {
    const Result again = run(selection);
    EXPECT_EQ(again.nll, plain.nll);
    EXPECT_EQ(again.gradients, plain.gradients);
    EXPECT_LT(again.memory.activations.n, plain.memory.activations.n);
  }
}

TEST_P(Recompute, AnyKindOfLayerGivesTheSameBits) {
  for (const ModelConfig& config : {model_test::hybrid_model(), model_test::latent_model()}) {
    const Result plain = run({}, config);
    const RecomputeConfig selections[] = {{.layers = {{1, 4}}, .check = true},
                                          {.layers = {{2, 2}, {4, 4}}},
                                          {.cheap = true},
                                          {.layers = {{3, 3}}, .cheap = true}};
    for (const RecomputeConfig& selection : selections) {
      const Result again = run(selection, config);
      EXPECT_EQ(again.nll, plain.nll);
      EXPECT_EQ(again.gradients, plain.gradients);
      EXPECT_LT(again.memory.activations.n, plain.memory.activations.n);
      EXPECT_EQ(again.load, plain.load) << "what runs again is not counted again";
    }
    EXPECT_EQ(std::accumulate(plain.load.begin(), plain.load.end(), std::int64_t{0}),
              3 * 2 * kB * kT);
  }
}

TEST_P(Recompute, SoDoesLatentAttention) {
  for (const ModelConfig& config : {model_test::mla_nope_model(), model_test::mla_rope_model(),
                                    model_test::mla_shared_model()}) {
    const Result plain = run({}, config);
    const RecomputeConfig selections[] = {{.layers = {{1, 2}}, .check = true},
                                          {.layers = {{2, 2}}},
                                          {.cheap = true},
                                          {.layers = {{1, 1}}, .cheap = true}};
    for (const RecomputeConfig& selection : selections) {
      const Result again = run(selection, config);
      EXPECT_EQ(again.nll, plain.nll);
      EXPECT_EQ(again.gradients, plain.gradients);
      EXPECT_LT(again.memory.activations.n, plain.memory.activations.n);
    }
  }
}

TEST_P(Recompute, LatentAttentionKeepsWhatItSays) {
  const ModelConfig config = model_test::mla_rope_model();
  const std::int64_t all = run({}, config).memory.activations.n;
  const auto saved = [&](const RecomputeConfig& r) {
    return all - run(r, config).memory.activations.n;
  };
  const auto rows = [](std::int64_t cols, DType dtype) {
    return align_up(bytes_of(Elems{kB * kT * cols}, dtype).n);
  };
  // As for gqa below; besides the norms of queries and keys, 6 and 7 wide, and 4 keys of 7.
  const std::int64_t cheap = 2 * rows(16, GetParam()) + rows(24, GetParam()) + rows(6, GetParam()) +
                             rows(7, GetParam()) + rows(4 * 7, GetParam());
  EXPECT_EQ(saved({.cheap = true}), 2 * cheap);
  // Besides: 1/rms of four norms, qa | c | kr, queries, own keys and values, attention and its
  // log-sum-exp, the inner sum, gate|up.
  const std::int64_t layer = cheap + 4 * rows(1, DType::kFloat32) + rows(17, GetParam()) +
                             rows(4 * 7, GetParam()) + rows(4 * 8, GetParam()) +
                             rows(4 * 5, GetParam()) + rows(4, DType::kFloat32) +
                             rows(16, GetParam()) + rows(48, GetParam());
  EXPECT_EQ(saved({.layers = {{2, 2}}}), layer);
}

TEST_P(Recompute, KeepsWhatItSays) {
  const std::int64_t all = run({}).memory.activations.n;
  const auto saved = [&](const RecomputeConfig& r) { return all - run(r).memory.activations.n; };
  const auto rows = [](std::int64_t cols, DType dtype) {
    return align_up(bytes_of(Elems{kB * kT * cols}, dtype).n);
  };
  // Two norm outputs of hidden 16 and the product of ffn 24.
  const std::int64_t cheap = 2 * rows(16, GetParam()) + rows(24, GetParam());
  EXPECT_EQ(saved({.cheap = true}), 3 * cheap);
  // Besides: 1/rms of both norms, q|k|v of 32, attention of 16 and its log-sum-exp, the inner sum,
  // gate|up of 48.
  const std::int64_t layer = cheap + 2 * rows(1, DType::kFloat32) + rows(32, GetParam()) +
                             rows(16, GetParam()) + rows(4, DType::kFloat32) +
                             rows(16, GetParam()) + rows(48, GetParam());
  EXPECT_EQ(saved({.layers = {{2, 2}}}), layer);
  EXPECT_EQ(saved({.layers = {{1, 3}}}), 3 * layer);
}

TEST_P(Recompute, CheckNamesTheLayerThatDiffers) {
  try {
    run({.layers = {{2, 3}}, .check = true}, [](parallel::ZeroStore& store) {
      // Layer 2 gets other weights for backward, as a broken update in between would give it.
      Tensor master = store.master(store.unit_index("layers.1"));
      for (std::int64_t i = 0; i < master.numel(); ++i) master.data<float>()[i] *= 2.0f;
      store.invalidate();
    });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    EXPECT_EQ(std::string(error.what())
                  .find("recompute.check: layer 2 (of recompute.layers): its "
                        "output differs from forward's, first at row "),
              0U)
        << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, Recompute, testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& dtype) { return std::string(dtype_name(dtype.param)); });

}  // namespace
}  // namespace k25::trainer
