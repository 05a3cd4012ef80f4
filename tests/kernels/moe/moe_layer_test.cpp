// A whole layer: against PyTorch (scripts/golden/moe_golden.py), against finite differences, and
// what only the composition shows.

#include "tests/kernels/moe/moe_layer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/golden/hashed.h"

namespace k25::moe_test {
namespace {

using op_test::all_near;
using op_test::for_each_isa;
using op_test::make_context;

struct Pair {
  GuardedTensor* value;
  GuardedTensor* gradient;  ///< null: none
};

std::map<std::string, Pair> tensors(Layer& l) {
  return {{"x", {&l.x, &l.d_x}},
          {"dy", {&l.dy, nullptr}},
          {"router", {&l.router, &l.d_router}},
          {"bias", {&l.bias, nullptr}},
          {"gate_up", {&l.gate_up, &l.d_gate_up}},
          {"down", {&l.down, &l.d_down}},
          {"shared_gate_up", {&l.shared_gate_up, &l.d_shared_gate_up}},
          {"shared_down", {&l.shared_down, &l.d_shared_down}},
          {"latent_down", {&l.latent_down, &l.d_latent_down}},
          {"latent_norm", {&l.latent_norm, &l.d_latent_norm}},
          {"latent_up", {&l.latent_up, &l.d_latent_up}}};
}

LayerConfig config_of(const nlohmann::json& c, DType dtype) {
  return {.tokens = c.at("tokens"),
          .hidden = c.at("hidden"),
          .experts = c.at("experts"),
          .top_k = c.at("top_k"),
          .ffn = c.at("ffn"),
          .shared_ffn = c.at("shared_ffn"),
          .latent = c.at("latent"),
          .groups = c.at("groups"),
          .top_groups = c.at("top_groups"),
          .normalize = c.at("normalize").get<bool>() ? kernels::NormalizeWeights::kYes
                                                     : kernels::NormalizeWeights::kNo,
          .scale = c.at("scale"),
          .balance = c.at("balance"),
          .dtype = dtype};
}

class MoeGolden : public testing::TestWithParam<const char*> {
 protected:
  static nlohmann::json golden() {
    std::ifstream in(std::string(K25_GOLDEN_DIR) + "/moe.json");
    EXPECT_TRUE(in) << "run scripts/golden/moe_golden.py";
    return nlohmann::json::parse(in).at(GetParam());
  }
  static void expect_equal(DType dtype, double tolerance) {
    const nlohmann::json expected = golden();
    Layer layer(config_of(expected.at("config"), dtype));
    std::map<std::string, Pair> all = tensors(layer);
    for (const nlohmann::json& t : expected.at("tensors")) {
      GuardedTensor& value = *all.at(t.at("name")).value;
      ASSERT_EQ(value.tensor().numel(), value.count());
      for (std::int64_t i = 0; i < value.count(); ++i) {
        value.set(i, t.at("shift").get<double>() +
                         t.at("factor").get<double>() * hashed(i, t.at("salt")));
      }
    }
    for_each_isa([&](Context& ctx) {
      LocalExchange exchange;
      layer.forward(ctx, exchange);
      layer.backward(ctx, exchange);
      EXPECT_EQ(layer.index.get(), expected.at("index").get<std::vector<double>>());
      EXPECT_TRUE(all_near(layer.weight.get(), expected.at("weight"), tolerance));
      EXPECT_TRUE(all_near(layer.y.get(), expected.at("y"), tolerance));
      EXPECT_NEAR(layer.balance_loss, expected.at("balance").get<double>(), tolerance);
      std::size_t compared = 0;
      for (const nlohmann::json& t : expected.at("tensors")) {
        if (!t.contains("gradient")) continue;
        const std::string name = t.at("name");
        EXPECT_TRUE(all_near(all.at(name).gradient->get(), t.at("gradient"), tolerance)) << name;
        ++compared;
      }
      EXPECT_EQ(compared, expected.at("tensors").size() - 2) << "all but dy and the bias";
    });
  }
};

TEST_P(MoeGolden, Fp64) { expect_equal(DType::kFloat64, 1e-10); }
TEST_P(MoeGolden, Fp32) { expect_equal(DType::kFloat32, 5e-6); }

INSTANTIATE_TEST_SUITE_P(Layers, MoeGolden,
                         testing::Values("kimi_linear", "deepseek_v3", "latent", "unnormalized",
                                         "all_chosen", "one_expert"),
                         [](const auto& test) { return std::string(test.param); });

/// Values of every tensor, a function of its name alone.
void fill(Layer& layer) {
  for (auto& [name, pair] : tensors(layer)) {
    const bool gain = name == "latent_norm";
    pair.value->set(op_test::random_values(name, pair.value->count(), gain ? 0.5 : -1, 1.5));
  }
}

LayerConfig latent_layer(DType dtype) {
  return {.tokens = 6,
          .hidden = 5,
          .experts = 8,
          .top_k = 2,
          .ffn = 3,
          .shared_ffn = 4,
          .latent = 3,
          .groups = 4,
          .top_groups = 2,
          .scale = 1.5,
          .balance = 0.1,
          .dtype = dtype};
}

TEST(MoeLayer, GradientsMatchFiniteDifferences) {
  Context ctx = make_context();
  LayerConfig plain = latent_layer(DType::kFloat64);
  plain.latent = 0;
  for (const LayerConfig& config : {latent_layer(DType::kFloat64), plain}) {
    Layer layer(config);
    LocalExchange exchange;
    fill(layer);
    layer.forward(ctx, exchange);
    layer.backward(ctx, exchange);
    const auto index = layer.index.get();
    for (auto& [name, pair] : tensors(layer)) {
      if (pair.gradient == nullptr) continue;
      EXPECT_TRUE(op_test::gradient_near(*pair.value, pair.gradient->get(), [&] {
        layer.forward(ctx, exchange);
        EXPECT_EQ(layer.index.get(), index) << "a step changed the choice";
        return op_test::weighted_sum(layer.dy.get(), layer.y.get()) + layer.balance_loss;
      })) << name;
    }
  }
}

// An expert that nobody chose has no gradient, whatever its weights hold; a NaN there does no harm.
TEST(MoeLayer, UnchosenExpertsHaveNoPart) {
  Context ctx = make_context();
  Layer layer(latent_layer(DType::kFloat32)), other(layer.config);
  LocalExchange exchange;
  for (Layer* l : {&layer, &other}) {
    fill(*l);
    l->bias.set({0, 0, 0, 0, 0, -100, 0, 0});
  }
  const std::int64_t size = layer.gate_up.count() / 8, size_down = layer.down.count() / 8;
  for (std::int64_t i = 0; i < size; ++i) other.gate_up.set(5 * size + i, std::nan(""));
  for (std::int64_t i = 0; i < size_down; ++i) other.down.set(5 * size_down + i, std::nan(""));
  for (Layer* l : {&layer, &other}) {
    l->forward(ctx, exchange);
    l->backward(ctx, exchange);
    EXPECT_EQ(l->count.get(5), 0);
    for (std::int64_t i = 0; i < size; ++i) EXPECT_EQ(l->d_gate_up.get(5 * size + i), 0);
    for (std::int64_t i = 0; i < size_down; ++i) EXPECT_EQ(l->d_down.get(5 * size_down + i), 0);
  }
  EXPECT_EQ(other.y.bits(), layer.y.bits());
  EXPECT_EQ(other.d_x.bits(), layer.d_x.bits());
  EXPECT_EQ(other.d_gate_up.bits(), layer.d_gate_up.bits());
}

TEST(MoeLayer, BitsDoNotDependOnThreads) {
  ThreadPool pool(3);
  LayerConfig config = latent_layer(DType::kFloat32);
  config.tokens = 150;
  config.hidden = 40;
  config.latent = 24;
  for_each_isa([&](Context& ctx) {
    Layer one(config), three(config);
    LocalExchange exchange;
    Context threaded = make_context(ctx.isa, &pool);
    fill(one);
    fill(three);
    one.forward(ctx, exchange);
    one.backward(ctx, exchange);
    three.forward(threaded, exchange);
    three.backward(threaded, exchange);
    EXPECT_EQ(three.y.bits(), one.y.bits());
    const auto expected = tensors(one);
    for (auto& [name, pair] : tensors(three)) {
      if (pair.gradient == nullptr) continue;
      EXPECT_EQ(pair.gradient->bits(), expected.at(name).gradient->bits()) << name;
    }
  });
}

TEST(MoeLayer, NoTokensGiveNoGradients) {
  Context ctx = make_context();
  LayerConfig config = latent_layer(DType::kFloat32);
  config.tokens = 0;
  Layer layer(config);
  LocalExchange exchange;
  fill(layer);
  layer.forward(ctx, exchange);
  layer.backward(ctx, exchange);
  EXPECT_EQ(layer.count.get(), std::vector<double>(8, 0.0));
  EXPECT_EQ(layer.d_router.get(), std::vector<double>(40, 0.0));
  EXPECT_EQ(layer.d_gate_up.get(), std::vector<double>(144, 0.0));
  EXPECT_EQ(layer.balance_loss, 0);
}

}  // namespace
}  // namespace k25::moe_test
