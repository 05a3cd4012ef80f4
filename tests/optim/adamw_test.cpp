#include "optim/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "tests/parallel/zero/toy.h"

namespace k25::optim {
namespace {

using parallel::Placement;
using parallel::toy_parameter;
using parallel::UnitSpec;

/// AdamW in double, written down from the paper.
struct Reference {
  double w, m = 0.0, v = 0.0;
  void update(double g, const StepPlan& p, double lr_scale, bool decay) {
    const double lr = p.lr * lr_scale;
    m = p.beta1 * m + (1.0 - p.beta1) * g;
    v = p.beta2 * v + (1.0 - p.beta2) * g * g;
    const double step = m * p.bias_correction1 / (std::sqrt(v * p.bias_correction2) + p.eps);
    w = w - (decay ? lr * p.weight_decay * w : 0.0) - lr * step;
  }
};

std::vector<UnitSpec> units() {
  UnitSpec block{
      "block",
      Placement::kSharded,
      {toy_parameter("plain", {50, 100}), toy_parameter("no_decay", {7}),
       toy_parameter("frozen", {13}), toy_parameter("empty", {0}), toy_parameter("slow", {9, 3})}};
  block.parameters[1].decay = false;
  block.parameters[2].frozen = true;
  block.parameters[4].lr_scale = 0.25;
  UnitSpec norms{"norms", Placement::kReplicated, {toy_parameter("norm", {5})}};
  norms.parameters[0].decay = false;
  return {block, norms};
}

class AdamWTest : public testing::Test {
 protected:
  AdamWTest() {
    options_.schedule = {.kind = ScheduleKind::kConstant, .lr = 0.01, .total = 10};
    options_.beta2 = 0.95;
    options_.weight_decay = 0.1;
    for (int u = 0; u < store_.num_units(); ++u) {
      float* master = store_.master(u).data<float>();
      const parallel::UnitLayout& layout = store_.layout(u);
      for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
        for (std::int64_t i = 0; i < layout.parameters[p].numel(); ++i) {
          master[layout.offsets[p] + i] = value(u, layout.offsets[p] + i, -1);
        }
      }
    }
  }

  static float value(int unit, std::int64_t at, int step) {
    return Philox(3, static_cast<std::uint64_t>(unit * 100 + step + 1), "v")
               .uniform(static_cast<std::uint64_t>(at)) -
           0.5F;
  }

  /// One step whose raw gradient is value(unit, at, step), with 4 label tokens.
  StepPlan step(int number, const StepStats& stats) {
    store_.begin_step();
    for (int u = 0; u < store_.num_units(); ++u) {
      const std::vector<Tensor>& g = store_.gradient(u);
      for (std::size_t p = 0; p < g.size(); ++p) {
        if (!g[p]) continue;
        for (std::int64_t i = 0; i < g[p].numel(); ++i) {
          g[p].data<float>()[i] = value(u, store_.layout(u).offsets[p] + i, number);
        }
      }
      store_.gradient_done(u);
    }
    store_.end_micro_batch();
    store_.finish_gradients();
    const StepPlan plan = decide(stats, state_, options_);
    apply_adamw(store_, plan);
    store_.end_step();
    state_ = plan.next;
    return plan;
  }

  std::vector<float> snapshot() {
    std::vector<float> all;
    for (int u = 0; u < store_.num_units(); ++u) {
      for (const Tensor& t : {store_.master(u), store_.m(u), store_.v(u)}) {
        all.insert(all.end(), t.data<float>(), t.data<float>() + t.numel());
      }
    }
    return all;
  }

  std::unique_ptr<parallel::World> world_ = parallel::World::create({});
  parallel::Mesh mesh_{*world_, {}};
  HostAllocator allocator_;
  Context context_;
  parallel::ZeroStore store_{mesh_, units(), {}, context_, allocator_};
  OptimOptions options_;
  PolicyState state_;
};

const StepStats kFinite{.label_tokens = 4, .gradient_square_sum = 1.0, .bad_parameter = {}};

TEST_F(AdamWTest, FollowsTheDoubleReference) {
  std::vector<std::vector<Reference>> reference;
  for (int u = 0; u < store_.num_units(); ++u) {
    reference.emplace_back();
    for (std::int64_t at = 0; at < store_.master(u).numel(); ++at) {
      reference.back().push_back({store_.master(u).data<float>()[at]});
    }
  }
  for (int s = 0; s < 10; ++s) {
    const StepPlan plan = step(s, kFinite);
    for (int u = 0; u < store_.num_units(); ++u) {
      const parallel::UnitLayout& layout = store_.layout(u);
      for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
        const parallel::ParameterSpec& spec = layout.parameters[p];
        for (std::int64_t i = 0; i < spec.numel() && !spec.frozen; ++i) {
          const std::int64_t at = layout.offsets[p] + i;
          reference[static_cast<std::size_t>(u)][static_cast<std::size_t>(at)].update(
              value(u, at, s) / 4.0, plan, spec.lr_scale, spec.decay);
        }
      }
    }
  }
  for (int u = 0; u < store_.num_units(); ++u) {
    for (std::int64_t at = 0; at < store_.master(u).numel(); ++at) {
      const Reference& want = reference[static_cast<std::size_t>(u)][static_cast<std::size_t>(at)];
      ASSERT_NEAR(store_.master(u).data<float>()[at], want.w, 1e-6) << u << " " << at;
      ASSERT_NEAR(store_.m(u).data<float>()[at], want.m, 1e-7);
      ASSERT_NEAR(store_.v(u).data<float>()[at], want.v, 1e-8);
    }
  }
}

TEST_F(AdamWTest, FrozenRangesAndPaddingStayAsTheyAre) {
  const parallel::UnitLayout& layout = store_.layout(0);
  const std::vector<float> before(store_.master(0).data<float>(),
                                  store_.master(0).data<float>() + layout.padded());
  for (int s = 0; s < 3; ++s) step(s, kFinite);
  std::vector<bool> moves(before.size());
  for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
    for (std::int64_t i = 0; i < layout.parameters[p].numel(); ++i) {
      moves[static_cast<std::size_t>(layout.offsets[p] + i)] = !layout.parameters[p].frozen;
    }
  }
  for (std::size_t at = 0; at < before.size(); ++at) {
    EXPECT_EQ(store_.master(0).data<float>()[at] != before[at], moves[at]) << at;
    if (!moves[at]) {
      EXPECT_EQ(store_.m(0).data<float>()[at], 0.0F);
      EXPECT_EQ(store_.v(0).data<float>()[at], 0.0F);
    }
  }
}

TEST_F(AdamWTest, StepsThatAreNotAppliedChangeNoBit) {
  step(0, kFinite);
  const std::vector<float> before = snapshot();
  StepStats bad = kFinite, empty = kFinite;
  bad.gradient_finite = false;
  empty.label_tokens = 0;
  for (const StepStats& s : {bad, empty}) {
    EXPECT_NE(step(1, s).action, StepAction::kApply);
    const std::vector<float> after = snapshot();
    EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)), 0);
  }
  EXPECT_EQ(state_.updates, 1);
}

}  // namespace
}  // namespace k25::optim
