// Small models against loss and gradients that PyTorch computed in fp64
// (scripts/golden/model_golden.py and layers_golden.py).

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "parallel/comm/world.h"
#include "tests/golden/hashed.h"
#include "tests/trainer/model/small_batch.h"
#include "trainer/model/model.h"
#include "trainer/train/step.h"

namespace k25::trainer {
namespace {

using model_test::kB;
using model_test::kT;

ModelConfig config_of(const std::string& kind) {
  ModelConfig config = kind == "layers_shared"       ? model_test::hybrid_model()
                       : kind == "layers_latent"     ? model_test::latent_model()
                       : kind == "layers_mla"        ? model_test::mla_nope_model()
                       : kind == "layers_mla_rope"   ? model_test::mla_rope_model()
                       : kind == "layers_mla_shared" ? model_test::mla_shared_model()
                                                     : model_test::small_model(2);
  if (kind.starts_with("layers")) config.norm_eps = 0.05;
  config.tie_embeddings = kind == "model_tied";
  return config;
}

/// What the golden scripts make of a hash.
double parameter_value(const std::string& name, double hash) {
  if (name.ends_with("norm")) return 1.0 + 0.4 * hash;
  return name.ends_with("conv") ? 4.0 * hash : hash;
}

class ModelGolden : public testing::TestWithParam<const char*> {};

TEST_P(ModelGolden, LossAndAllGradients) {
  const std::string kind = GetParam();
  std::ifstream in(std::string(K25_GOLDEN_DIR) + "/" + kind + ".json");
  ASSERT_TRUE(in) << "run scripts/golden/model_golden.py and layers_golden.py";
  const nlohmann::json golden = nlohmann::json::parse(in);
  std::map<std::string, nlohmann::json> expected;
  for (const nlohmann::json& p : golden.at("parameters")) expected[p.at("name")] = p;

  const auto world = parallel::World::create({});
  parallel::Mesh mesh(*world, {});
  HostAllocator allocator;
  Context context{.isa = detect_cpu_isa()};
  Model model(config_of(kind), {kB, kT, DType::kFloat32}, {}, {});
  model.allocate(context, allocator);
  parallel::ZeroStore store(mesh, model.units(), {}, context, allocator);
  for (int u = 0; u < store.num_units(); ++u) {
    const parallel::UnitLayout& layout = store.layout(u);
    for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
      const std::string& name = layout.parameters[p].name;
      float* master = store.master(u).data<float>() + layout.offsets[p];
      for (std::int64_t i = 0; i < layout.parameters[p].numel(); ++i) {
        const double hash = hashed(i, expected.at(name).at("salt"));
        master[i] = static_cast<float>(parameter_value(name, hash));
      }
    }
  }
  store.invalidate();

  const data::Batch batch = model_test::small_batch();
  store.begin_step();
  const Model::Output output =
      model.forward(context, store, batch_tensors(batch), Model::Purpose::kTrain);
  optim::LocalStats loss;
  for (std::int64_t b = 0; b < kB; ++b) {
    double nll = 0.0;
    for (std::int64_t t = 0; t < kT; ++t) nll += output.nll_N.data<float>()[b * kT + t];
    optim::add_nll(loss, nll);
  }
  model.backward(context, store, batch_tensors(batch));
  store.end_micro_batch();
  store.finish_gradients();

  EXPECT_NEAR(static_cast<double>(loss.nll_fixed) * 0x1p-24, golden.at("loss"),
              1e-5 * golden.at("loss").get<double>());
  std::size_t compared = 0;
  for (int u = 0; u < store.num_units(); ++u) {
    const parallel::UnitLayout& layout = store.layout(u);
    for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
      const std::vector<double> want = expected.at(layout.parameters[p].name).at("gradient");
      const float* got = store.shard_gradient(u).data<float>() + layout.offsets[p];
      double largest = 0.0;
      for (const double w : want) largest = std::max(largest, std::fabs(w));
      for (std::size_t i = 0; i < want.size(); ++i) {
        // Norms of nearly nothing (L2 of q and k, RMS of o) amplify the rounding of fp32 beyond an
        // element's own size; the sublayers' own gradients are tested in fp64.
        const double size = kind.starts_with("layers") ? largest : std::fabs(want[i]);
        ASSERT_NEAR(got[i], want[i], 1e-5 * std::max(1.0, size))
            << layout.parameters[p].name << "[" << i << "]";
      }
      ++compared;
    }
  }
  EXPECT_EQ(compared, expected.size());
  if (golden.contains("load")) {
    const Tensor& load = model.expert_load();
    const std::vector<std::vector<std::int64_t>> want = golden.at("load");
    for (std::int64_t i = 0; i < load.numel(); ++i) {
      const auto layer = static_cast<std::size_t>(i / load.dim(1));
      EXPECT_EQ(load.data<std::int64_t>()[i],
                want[layer][static_cast<std::size_t>(i % load.dim(1))])
          << "layer " << layer;
    }
  }
  store.end_step();
  world->finish();
}

INSTANTIATE_TEST_SUITE_P(Kinds, ModelGolden,
                         testing::Values("model_untied", "model_tied", "layers_shared",
                                         "layers_latent", "layers_mla", "layers_mla_rope",
                                         "layers_mla_shared"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace k25::trainer
