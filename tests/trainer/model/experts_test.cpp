// What a model does with its experts beside forward and backward: names, initial values, the
// correction bias.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
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

class Experts : public testing::Test {
 protected:
  explicit Experts(const std::vector<std::string>& freeze = {})
      : model_(model_test::hybrid_model(), {kB, kT, DType::kFloat32}, freeze, {}) {
    model_.allocate(context_, allocator_);
    store_ = std::make_unique<parallel::ZeroStore>(mesh_, model_.units(), parallel::ZeroOptions{},
                                                   context_, allocator_);
    initialize_parameters(*store_, 7);
  }

  /// One micro-batch, up to finish_gradients.
  void gradients() {
    store_->begin_step();
    model_.forward(context_, *store_, tensors_, Model::Purpose::kTrain);
    model_.backward(context_, *store_, tensors_);
    store_->end_micro_batch();
    store_->finish_gradients();
  }
  std::vector<float> values(const std::string& name) {
    for (int u = 0; u < store_->num_units(); ++u) {
      const parallel::UnitLayout& layout = store_->layout(u);
      for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
        if (layout.parameters[p].name != name) continue;
        const float* begin = store_->master(u).data<float>() + layout.offsets[p];
        return {begin, begin + layout.parameters[p].numel()};
      }
    }
    ADD_FAILURE() << "no parameter " << name;
    return {};
  }
  std::vector<std::int64_t> load(std::int64_t layer) const {
    const Tensor row = model_.expert_load().select(0, static_cast<int>(layer));
    return {row.data<std::int64_t>(), row.data<std::int64_t>() + row.numel()};
  }

  std::unique_ptr<parallel::World> world_ = parallel::World::create({});
  parallel::Mesh mesh_{*world_, {}};
  HostAllocator allocator_;
  Context context_{.isa = detect_cpu_isa()};
  data::Batch batch_ = model_test::small_batch();
  BatchTensors tensors_ = batch_tensors(batch_);
  Model model_;
  std::unique_ptr<parallel::ZeroStore> store_;
};

TEST_F(Experts, BiasFollowsTheLoad) {
  gradients();
  for (const std::int64_t layer : {1, 2, 3}) {
    const std::vector<std::int64_t> counts = load(layer);
    EXPECT_EQ(counts[0] + counts[1] + counts[2] + counts[3] + counts[4], 2 * kB * kT);
  }
  EXPECT_EQ(load(0), std::vector<std::int64_t>(5, 0)) << "a dense layer has none";
  model_.move_correction_biases(*store_);
  for (const std::int64_t layer : {1, 2, 3}) {
    const std::vector<float> bias = values("layers." + std::to_string(layer) + ".moe.bias");
    const std::vector<std::int64_t> counts = load(layer);
    for (std::size_t e = 0; e < 5; ++e) {
      const float want = 5 * counts[e] < 2 * kB * kT ? 0.001f : -0.001f;  // 48 is no multiple of 5
      EXPECT_EQ(bias[e], want) << "layer " << layer << " expert " << e;
    }
  }
  store_->end_step();
}

class FrozenBias : public Experts {
 protected:
  FrozenBias() : Experts({"layers.[12].moe.*", "head"}) {}
};

TEST_F(FrozenBias, StaysWhereItIs) {
  gradients();
  model_.move_correction_biases(*store_);
  store_->end_step();
  EXPECT_EQ(values("layers.1.moe.bias"), std::vector<float>(5, 0.0f));
  EXPECT_EQ(values("layers.2.moe.bias"), std::vector<float>(5, 0.0f));
  EXPECT_NE(values("layers.3.moe.bias"), std::vector<float>(5, 0.0f));
}

TEST_F(Experts, LoadIsThatOfBackwardPassesSinceTheLastClear) {
  gradients();
  const std::vector<std::int64_t> once = load(2);
  store_->end_step();
  model_.forward(context_, *store_, tensors_, Model::Purpose::kEvaluate);
  EXPECT_EQ(load(2), once);
  gradients();
  store_->end_step();
  for (std::size_t e = 0; e < 5; ++e) EXPECT_EQ(load(2)[e], 2 * once[e]);
  model_.clear_expert_load();
  EXPECT_EQ(load(2), std::vector<std::int64_t>(5, 0));
}

TEST_F(Experts, TheBiasIsNoTrainedParameter) {
  gradients();
  int biases = 0;
  for (const parallel::UnitSpec& unit : model_.units()) {
    for (const parallel::ParameterSpec& p : unit.parameters) {
      if (!p.name.ends_with("moe.bias")) continue;
      ++biases;
      EXPECT_TRUE(p.frozen);
      EXPECT_EQ(unit.placement, parallel::Placement::kReplicated);
    }
  }
  EXPECT_EQ(biases, 3);
  store_->end_step();
}

TEST_F(Experts, InitialDecayIsThatOfThePaper) {
  for (const float a : values("layers.0.kda.a_log")) {
    EXPECT_GT(a, 0.0f);
    EXPECT_LT(a, std::log(16.0f));
  }
  for (const float x : values("layers.0.kda.dt_bias")) {
    const double step = std::log1p(std::exp(static_cast<double>(x)));
    EXPECT_GT(step, 0.99e-3);
    EXPECT_LT(step, 0.101);
  }
  EXPECT_EQ(values("layers.0.kda.out_norm"), std::vector<float>(6, 1.0f));
  EXPECT_EQ(values("layers.1.moe.bias"), std::vector<float>(5, 0.0f));
}

TEST_F(Experts, ParametersAreCountedByHand) {
  // D 16, V 29; kda: in 16 (2 x 14 + 6 + 2), f_b 8 x 3, g_b 12 x 3, out 16 x 12, conv 28 x 4, 2 + 8
  // + 6; moe: router 5 x 16, experts 5 x 3 x 8 x 16, bias 5, shared 3 x 16 x 16.
  const std::int64_t kda = 576 + 24 + 36 + 192 + 112 + 16, gqa = 16 * 32 + 16 * 16;
  const std::int64_t moe = 80 + 1920 + 5 + 768, swiglu = 3 * 16 * 24;
  EXPECT_EQ(model_.num_parameters(),
            3 * kda + gqa + 3 * moe + swiglu + 4 * 2 * 16 + 2 * 29 * 16 + 16);
}

struct LossAndGradients {
  double loss = 0.0;
  std::vector<double> gradients;
};

LossAndGradients run_in(DType compute, const ModelConfig& config) {
  const auto world = parallel::World::create({});
  parallel::Mesh mesh(*world, {});
  HostAllocator allocator;
  Context context{.isa = detect_cpu_isa()};
  Model model(config, {kB, kT, compute}, {}, {});
  model.allocate(context, allocator);
  parallel::ZeroStore store(mesh, model.units(), {.compute = compute}, context, allocator);
  initialize_parameters(store, 7);
  const data::Batch batch = model_test::small_batch();
  store.begin_step();
  const Model::Output output =
      model.forward(context, store, batch_tensors(batch), Model::Purpose::kTrain);
  LossAndGradients result;
  for (std::int64_t i = 0; i < kB * kT; ++i) result.loss += output.nll_N.data<float>()[i];
  model.backward(context, store, batch_tensors(batch));
  store.end_micro_batch();
  store.finish_gradients();
  for (int u = 0; u < store.num_units(); ++u) {
    const Tensor g = store.shard_gradient(u);
    result.gradients.insert(result.gradients.end(), g.data<float>(), g.data<float>() + g.numel());
  }
  store.end_step();
  world->finish();
  return result;
}

TEST(LayersInBf16, AreThoseOfFp32ToTheirPrecision) {
  for (ModelConfig config :
       {model_test::hybrid_model(), model_test::latent_model(), model_test::mla_nope_model(),
        model_test::mla_rope_model(), model_test::mla_shared_model()}) {
    config.init_std = 0.3;  // so that the layers have a say
    config.norm_eps = 0.05;
    config.moe.per_token = config.moe.experts;  // no choice that rounding could turn
    const LossAndGradients want = run_in(DType::kFloat32, config);
    const LossAndGradients got = run_in(DType::kBFloat16, config);
    EXPECT_NEAR(got.loss, want.loss, 0.01 * want.loss);
    double difference = 0.0, size = 0.0;
    for (std::size_t i = 0; i < want.gradients.size(); ++i) {
      difference += std::pow(got.gradients[i] - want.gradients[i], 2);
      size += std::pow(want.gradients[i], 2);
    }
    EXPECT_LT(std::sqrt(difference / size), 0.05);
    EXPECT_GT(difference, 0.0);
  }
}

TEST(LayersOnGpu, AreRefusedByName) {
  ModelConfig attention = model_test::hybrid_model(), narrow = attention, uneven = attention;
  ModelConfig latent = model_test::mla_rope_model();
  latent.pattern.insert(latent.pattern.begin(), LayerPattern{});
  attention.pattern = {{MixerKind::kGqa, FeedForwardKind::kSwiglu},
                       {MixerKind::kGqa, FeedForwardKind::kMoe}};
  narrow.pattern = uneven.pattern = {{MixerKind::kKda, FeedForwardKind::kSwiglu}};
  uneven.kda.key_dim = 64;
  const std::pair<ModelConfig, std::string> cases[] = {
      {attention, "model.pattern: layer 2 has moe, which runs on the CPU only"},
      {latent, "model.pattern: layer 2 has mla, which runs on the CPU only"},
      {narrow,
       "model.kda.key_head_dim: 4, and the heads of kda layers are 64 or 128 wide on a GPU"},
      {uneven, "model.kda.value_head_dim: 6, and the heads of kda"}};
  for (const auto& [config, words] : cases) {
    try {
      const Model model(config, {kB, kT, DType::kFloat32, Device::kCuda}, {}, {});
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_EQ(std::string(error.what()).rfind(words, 0), 0U) << error.what();
    }
  }
}

}  // namespace
}  // namespace k25::trainer
