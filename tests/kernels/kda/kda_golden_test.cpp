// All ops of a Kimi Delta Attention layer in a row, against outputs, states and gradients that
// PyTorch computed in fp64 (scripts/golden/kda_golden.py).

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/conv1d/conv1d.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/kda/kda.h"
#include "kernels/kda_gate/kda_gate.h"
#include "kernels/l2norm/l2norm.h"
#include "tests/golden/hashed.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::all_near;
using op_test::GuardedTensor;
using op_test::Scratch;

constexpr std::int64_t kH = 1, kM = 2, kK = 4, kV = 3, kT = 70, kS = 3;
constexpr DType kWide = DType::kFloat64;

struct Layer {
  nlohmann::json table;
  std::map<std::string, GuardedTensor> operand, gradient;
  Context ctx = op_test::make_context();
  GuardedTensor border{DType::kInt32, {kS + 1}, std::vector<double>{0, 3, 70, 70}};
  KdaGateDesc gate_desc{.rows = kT, .heads = kM, .cols = kK, .dtype = kWide};
  KdaBetaDesc beta_desc{.rows = kT, .heads = kM, .dtype = kWide};
  KdaDesc kda_desc{.batch = 1,
                   .tokens = kT,
                   .heads = kH,
                   .value_heads = kM,
                   .key_dim = kK,
                   .value_dim = kV,
                   .sequences = kS,
                   .dtype = kWide};
  L2NormDesc norm_desc{.rows = kT, .heads = kH, .cols = kK, .dtype = kWide};
  GatedRmsNormDesc out_desc{.rows = kT, .heads = kM, .cols = kV, .dtype = kWide};
  bool has_rate = true;

  GuardedTensor q_conv{kWide, {1, kT, kH* kK}}, k_conv{kWide, {1, kT, kH* kK}};
  GuardedTensor v_conv{kWide, {1, kT, kM* kV}};
  GuardedTensor q{kWide, {kT, kH, kK}}, k{kWide, {kT, kH, kK}};
  GuardedTensor q_rstd{kWide, {kT, kH}}, k_rstd{kWide, {kT, kH}}, o_rstd{kWide, {kT, kM}};
  GuardedTensor g{kWide, {kT, kM, kK}}, beta{kWide, {kT, kM}};
  GuardedTensor o{kWide, {kT, kM, kV}}, y{kWide, {kT, kM, kV}}, state{kWide, {kS, kM, kK, kV}};
  GuardedTensor d_o{kWide, {kT, kM, kV}}, dq{kWide, {kT, kH, kK}}, dk{kWide, {kT, kH, kK}};
  GuardedTensor dv{kWide, {kT, kM, kV}}, dg{kWide, {kT, kM, kK}}, dbeta{kWide, {kT, kM}};

  Layer(const nlohmann::json& operands, const std::string& kind, KdaForm form) : table(operands) {
    add("q", {1, kT, kH * kK});
    add("k", {1, kT, kH * kK});
    add("v", {1, kT, kM * kV});
    add("f", {kT, kM, kK});
    add("b", {kT, kM});
    add("e", {kT, kM, kV});
    add("q_weight", {kH * kK, 4});
    add("k_weight", {kH * kK, 4});
    add("v_weight", {kM * kV, 4});
    add("a_log", {kM});
    add("dt_bias", {kM, kK});
    add("gain", {kV});
    add("state", {kS, kM, kK, kV});
    add("q_state", {kS, 3, kH * kK});
    add("w_y", {kT, kM, kV});
    add("w_state", {kS, kM, kK, kV});
    if (kind != "softplus") gate_desc.gate = KdaGate::kLowerBound;
    if (kind == "lower_bound") beta_desc.range = KdaBetaRange::kTwo;
    has_rate = kind != "lower_bound_without_a";
    kda_desc.form = form;
  }

  void add(const std::string& name, const std::vector<std::int64_t>& shape) {
    GuardedTensor t(kWide, shape);
    std::int64_t salt = 0;
    while (table.at(static_cast<std::size_t>(salt)).at("name") != name) ++salt;
    const nlohmann::json& row = table.at(static_cast<std::size_t>(salt));
    const double low = row.at("low"), high = row.at("high");
    for (std::int64_t i = 0; i < t.count(); ++i) {
      t.set(i, (low + high) / 2 + (high - low) * hashed(i, salt));
    }
    operand.emplace(name, std::move(t));
    GuardedTensor zero(kWide, shape);
    zero.fill(0);
    gradient.emplace(name, std::move(zero));
  }
  const GuardedTensor& in(const std::string& name) const { return operand.at(name); }
  const GuardedTensor& grad(const std::string& name) const { return gradient.at(name); }

  /// [rows, ...] as the [1, rows, ...] of ops that have a batch.
  static Tensor batched(const GuardedTensor& t) {
    const Tensor v = t.tensor();
    if (v.ndim() == 2) return v.view({1, v.dim(0), v.dim(1)});
    return v.view({1, v.dim(0), v.dim(1), v.dim(2)});
  }
  SequenceBorders borders() const { return {border, {}, {}}; }
  ConstTensor rate() const { return has_rate ? ConstTensor(in("a_log")) : ConstTensor(); }

  Conv1dPlan conv_plan(std::int64_t channels) const {
    return conv1d_plan(
        {.batch = 1, .tokens = kT, .channels = channels, .sequences = kS, .dtype = kWide});
  }

  void forward() {
    conv1d_forward(ctx, conv_plan(kH * kK), {in("q"), in("q_weight"), borders(), in("q_state")},
                   {q_conv, {}}, {});
    conv1d_forward(ctx, conv_plan(kH * kK), {in("k"), in("k_weight"), borders(), {}}, {k_conv, {}},
                   {});
    conv1d_forward(ctx, conv_plan(kM * kV), {in("v"), in("v_weight"), borders(), {}}, {v_conv, {}},
                   {});
    const L2NormPlan norm = l2norm_plan(norm_desc);
    l2norm_forward(ctx, norm, {q_conv.tensor().view({kT, kH, kK})}, {q, q_rstd}, {});
    l2norm_forward(ctx, norm, {k_conv.tensor().view({kT, kH, kK})}, {k, k_rstd}, {});
    kda_gate_forward(ctx, kda_gate_plan(gate_desc), {in("f"), rate(), in("dt_bias")}, {g}, {});
    kda_beta_forward(ctx, kda_beta_plan(beta_desc), {in("b")}, {beta}, {});
    const KdaPlan plan = kda_plan(kda_desc);
    const Scratch scratch(plan.workspace_bytes);
    kda_forward(ctx, plan,
                {batched(q),
                 batched(k),
                 v_conv.tensor().view({1, kT, kM, kV}),
                 batched(g),
                 batched(beta),
                 borders(),
                 in("state"),
                 {}},
                {batched(o), state, {}, {}}, scratch.workspace());
    gated_rmsnorm_forward(ctx, gated_rmsnorm_plan(out_desc), {o, in("e"), in("gain")}, {y, o_rstd},
                          {});
  }

  void backward() {
    const GatedRmsNormPlan out = gated_rmsnorm_plan(out_desc);
    const Scratch out_scratch(out.workspace_bytes);
    gated_rmsnorm_backward(ctx, out, {in("w_y"), o, in("e"), in("gain"), o_rstd},
                           {d_o, grad("e"), grad("gain")}, out_scratch.workspace());
    const KdaPlan plan = kda_plan(kda_desc);
    const Scratch scratch(plan.workspace_bytes);
    kda_backward(
        ctx, plan,
        {batched(q),
         batched(k),
         v_conv.tensor().view({1, kT, kM, kV}),
         batched(g),
         batched(beta),
         borders(),
         in("state"),
         {},
         batched(d_o),
         in("w_state")},
        {batched(dq), batched(dk), batched(dv), batched(dg), batched(dbeta), grad("state")},
        scratch.workspace());
    const KdaGatePlan gate = kda_gate_plan(gate_desc);
    const Scratch gate_scratch(gate.workspace_bytes);
    kda_gate_backward(ctx, gate, {dg, in("f"), rate(), in("dt_bias")},
                      {grad("f"), has_rate ? grad("a_log").tensor() : Tensor(), grad("dt_bias")},
                      gate_scratch.workspace());
    kda_beta_backward(ctx, kda_beta_plan(beta_desc), {dbeta, in("b")}, {grad("b")}, {});
    const L2NormPlan norm = l2norm_plan(norm_desc);
    l2norm_backward(ctx, norm, {dq, q, q_rstd}, {dq}, {});
    l2norm_backward(ctx, norm, {dk, k, k_rstd}, {dk}, {});
    conv1d_backward(
        ctx, conv_plan(kH * kK),
        {dq.tensor().view({1, kT, kH * kK}), in("q"), in("q_weight"), borders(), in("q_state"), {}},
        {grad("q"), grad("q_weight"), grad("q_state")}, {});
    conv1d_backward(
        ctx, conv_plan(kH * kK),
        {dk.tensor().view({1, kT, kH * kK}), in("k"), in("k_weight"), borders(), {}, {}},
        {grad("k"), grad("k_weight"), {}}, {});
    conv1d_backward(
        ctx, conv_plan(kM * kV),
        {dv.tensor().view({1, kT, kM * kV}), in("v"), in("v_weight"), borders(), {}, {}},
        {grad("v"), grad("v_weight"), {}}, {});
  }
};

TEST(KdaGolden, LayerAndAllGradients) {
  std::ifstream file(std::string(K25_GOLDEN_DIR) + "/kda.json");
  ASSERT_TRUE(file) << "run scripts/golden/kda_golden.py";
  const nlohmann::json golden = nlohmann::json::parse(file);
  ASSERT_EQ(golden.at("lengths"), nlohmann::json({3, 67, 0}));
  ASSERT_EQ(golden.at("cases").size(), 3u);
  for (const nlohmann::json& expected : golden.at("cases")) {
    for (const KdaForm form : {KdaForm::kChunked, KdaForm::kRecurrent}) {
      const std::string kind = expected.at("kind");
      SCOPED_TRACE(kind);
      Layer layer(golden.at("operands"), kind, form);
      layer.forward();
      layer.backward();
      // The file has 12 digits.
      EXPECT_TRUE(all_near(layer.y.get(), expected.at("y"), 1e-11));
      EXPECT_TRUE(all_near(layer.state.get(), expected.at("state"), 1e-11));
      EXPECT_EQ(expected.at("gradients").size(), kind == "lower_bound_without_a" ? 13u : 14u);
      for (const auto& [name, values] : expected.at("gradients").items()) {
        EXPECT_TRUE(all_near(layer.grad(name).get(), values, 1e-10)) << name;
      }
    }
  }
}

}  // namespace
}  // namespace k25::kernels
