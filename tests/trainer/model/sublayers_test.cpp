// KDA and latent attention mixers and mixture of experts in fp64: gradients against central
// differences, bytes against the plan, documents that do not see each other.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/core/thread_pool.h"
#include "tests/golden/hashed.h"
#include "tests/kernels/allocation_counter.h"
#include "tests/trainer/model/small_batch.h"
#include "trainer/model/kda.h"
#include "trainer/model/mla.h"
#include "trainer/model/moe_ffn.h"
#include "trainer/train/batch_upload.h"

namespace k25::trainer {
namespace {

using model_test::kB;
using model_test::kT;

enum class Part : std::uint8_t { kKda, kMla, kMoe };

/// fp64 parameters of a unit, or their gradients.
struct Numbers {
  std::vector<std::vector<double>> values;
  std::vector<Tensor> views;

  Numbers(const parallel::UnitSpec& spec, bool gradients) {
    values.reserve(spec.parameters.size());
    for (const parallel::ParameterSpec& p : spec.parameters) {
      values.emplace_back(static_cast<std::size_t>(p.numel()), 0.0);
      views.push_back(gradients && p.frozen
                          ? Tensor{}
                          : Tensor(values.back().data(), DType::kFloat64, p.shape));
    }
  }
};

/// One sublayer alone, with a loss that is a fixed weighting of its output.
class Bench {
 public:
  Bench(const ModelConfig& config, Part part, Keep keep) : config_(config), part_(part) {
    sublayer_ = make(keep);
    Arena saved, scratch;
    sublayer_->take_saved(saved);
    sublayer_->measure_scratch(scratch);
    planned_saved = saved.peak();
    planned_scratch = scratch.peak();
    saved_ = Arena(planned_saved, allocator_, "saved");
    scratch_ = Arena(planned_scratch, allocator_, "scratch");
    workspace_ = Buffer(sublayer_->workspace_bytes(), allocator_, "workspace");
    unit = std::make_unique<Numbers>(unit_.spec(), false);
    replicated = std::make_unique<Numbers>(replicated_.spec(), false);
    std::int64_t salt = 1;
    for (Numbers* numbers : {unit.get(), replicated.get()}) {
      for (std::vector<double>& v : numbers->values) {
        ++salt;
        for (std::size_t i = 0; i < v.size(); ++i) v[i] = hashed(static_cast<int>(i), salt);
      }
    }
    x.resize(static_cast<std::size_t>(kB * kT * config.hidden));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 2.0 * hashed(static_cast<int>(i), 77);
  }

  const parallel::UnitSpec& spec(bool of_replicated) {
    return of_replicated ? replicated_.spec() : unit_.spec();
  }

  std::vector<double> output() {
    std::vector<double> out(x.size());
    saved_.rewind({});
    BlockRun r = run();
    const long before = op_test::allocations;
    sublayer_->take_saved(saved_);
    sublayer_->forward(r, {unit->views, replicated->views}, rows(x), rows(out));
    allocated += op_test::allocations - before;
    return out;
  }
  double loss() {
    const std::vector<double> out = output();
    double sum = balance_loss();
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * hashed(static_cast<int>(i), 99);
    return sum;
  }
  /// Of both rows, from the formula in kernels/moe/balance.h.
  double balance_loss() const {
    const MoeConfig& moe = config_.moe;
    if (part_ != Part::kMoe || moe.balance == 0.0) return 0.0;
    const auto n = static_cast<std::size_t>(moe.experts), d = static_cast<std::size_t>(16);
    const std::vector<double>& router = unit->values[0];
    const std::vector<double>& bias = replicated->values[0];
    double loss = 0.0;
    for (std::size_t row = 0; row < kB; ++row) {
      std::vector<double> fraction(n, 0.0), share(n, 0.0);
      for (std::size_t t = row * kT; t < (row + 1) * kT; ++t) {
        std::vector<double> s(n);
        std::vector<std::size_t> order(n);
        for (std::size_t e = 0; e < n; ++e) {
          double logit = 0.0;
          for (std::size_t i = 0; i < d; ++i) logit += x[t * d + i] * router[e * d + i];
          s[e] = 1.0 / (1.0 + std::exp(-logit));
          order[e] = e;
        }
        std::sort(order.begin(), order.end(),
                  [&](std::size_t a, std::size_t b) { return s[a] + bias[a] > s[b] + bias[b]; });
        const double sum = std::accumulate(s.begin(), s.end(), 0.0);
        for (std::size_t e = 0; e < n; ++e) share[e] += s[e] / sum;
        for (std::int64_t k = 0; k < moe.per_token; ++k) {
          fraction[order[static_cast<std::size_t>(k)]] +=
              static_cast<double>(n) / static_cast<double>(moe.per_token * kT);
        }
      }
      for (std::size_t e = 0; e < n; ++e) loss += moe.balance * fraction[e] * share[e];
    }
    return loss;
  }
  /// Gradient of x; those of the parameters are added to the two.
  std::vector<double> backward(Numbers& d_unit, Numbers& d_replicated) {
    output();
    std::vector<double> d_out(x.size()), d_x(x.size(), std::nan(""));
    for (std::size_t i = 0; i < x.size(); ++i) d_out[i] = hashed(static_cast<int>(i), 99);
    BlockRun r = run();
    const long before = op_test::allocations;
    sublayer_->backward(r, {unit->views, replicated->views}, {d_unit.views, d_replicated.views},
                        rows(x), rows(d_out), rows(d_x));
    allocated += op_test::allocations - before;
    return d_x;
  }
  Bytes used_saved() const { return saved_.peak(); }
  Bytes used_scratch() const { return scratch_.peak(); }

  std::unique_ptr<Numbers> unit, replicated;
  std::vector<double> x;
  Bytes planned_saved, planned_scratch;
  long allocated = 0;  ///< by forward and backward

 private:
  std::unique_ptr<Sublayer> make(Keep keep) {
    const RunShape shape{kB, kT, DType::kFloat64};
    if (part_ == Part::kKda) {
      return std::make_unique<KdaMixer>(config_, shape, 0, keep, unit_, replicated_);
    }
    if (part_ == Part::kMla) {
      const std::int64_t width = config_.mla.rope_dim;
      if (config_.mla.rotates()) {
        table_values_.resize(static_cast<std::size_t>(kT * width));
        const Tensor table(table_values_.data(), DType::kFloat64, {kT, width});
        kernels::rope_fill_table(MlaMixer::rope_desc(config_, shape, 1), table);
        table_ = table;
      }
      return std::make_unique<MlaMixer>(config_, shape, 0, keep, table_, unit_, replicated_);
    }
    return std::make_unique<MoeFeedForward>(config_, shape, 1, keep, unit_, replicated_);
  }
  BlockRun run() {
    return {context_, tensors_, saved_, scratch_, {workspace_.data(), workspace_.size()}};
  }
  Tensor rows(std::vector<double>& values) const {
    return {values.data(), DType::kFloat64, {kB * kT, config_.hidden}};
  }

  ModelConfig config_;
  Part part_;
  HostAllocator allocator_;
  Context context_{.isa = detect_cpu_isa()};
  data::Batch batch_ = model_test::small_batch();
  BatchTensors tensors_ = batch_tensors(batch_);
  UnitBuilder unit_{"unit", parallel::Placement::kSharded};
  UnitBuilder replicated_{"replicated", parallel::Placement::kReplicated};
  std::vector<double> table_values_;
  ConstTensor table_;
  std::unique_ptr<Sublayer> sublayer_;
  Arena saved_, scratch_;
  Buffer workspace_;
};

struct Case {
  const char* name;
  Part part;
  ModelConfig config;
  Keep keep;
};

std::vector<Case> cases() {
  ModelConfig plain = model_test::hybrid_model(), grouped = model_test::hybrid_model();
  plain.moe.shared_experts = 0;
  grouped.moe.experts = 6;
  grouped.moe.groups = 3;
  grouped.moe.top_groups = 2;
  ModelConfig both = model_test::latent_model();
  both.moe.shared_experts = 1;
  return {{"kda_softplus", Part::kKda, model_test::hybrid_model(), Keep::kAll},
          {"kda_lower_bound", Part::kKda, model_test::latent_model(), Keep::kCostly},
          {"mla_nope", Part::kMla, model_test::mla_nope_model(), Keep::kAll},
          {"mla_nope_again", Part::kMla, model_test::mla_nope_model(), Keep::kCostly},
          {"mla_rope", Part::kMla, model_test::mla_rope_model(), Keep::kAll},
          {"mla_rope_again", Part::kMla, model_test::mla_rope_model(), Keep::kCostly},
          {"mla_shared", Part::kMla, model_test::mla_shared_model(), Keep::kCostly},
          {"moe_shared", Part::kMoe, model_test::hybrid_model(), Keep::kAll},
          {"moe_alone", Part::kMoe, plain, Keep::kAll},
          {"moe_groups", Part::kMoe, grouped, Keep::kCostly},
          {"moe_latent", Part::kMoe, model_test::latent_model(), Keep::kAll},
          {"moe_latent_shared", Part::kMoe, both, Keep::kCostly}};
}

class Sublayers : public testing::TestWithParam<Case> {
 protected:
  Bench bench_{GetParam().config, GetParam().part, GetParam().keep};

  double difference(double& value) {
    constexpr double kStep = 1e-5;
    const double was = value;
    value = was + kStep;
    const double above = bench_.loss();
    value = was - kStep;
    const double below = bench_.loss();
    value = was;
    return (above - below) / (2 * kStep);
  }
  void compare(std::vector<double>& values, const std::vector<double>& gradient,
               const std::string& name) {
    double largest = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double want = difference(values[i]);
      ASSERT_NEAR(gradient[i], want, 1e-6 * std::max(1.0, std::fabs(want)))
          << name << "[" << i << "]";
      largest = std::max(largest, std::fabs(want));
    }
    EXPECT_GT(largest, 1e-4) << name << ": a gradient of nothing proves nothing";
  }
};

TEST_P(Sublayers, GradientsAreFiniteDifferences) {
  Numbers d_unit(bench_.spec(false), true), d_replicated(bench_.spec(true), true);
  const std::vector<double> d_x = bench_.backward(d_unit, d_replicated);
  compare(bench_.x, d_x, "x");
  const auto all = [&](Numbers& values, const Numbers& gradients, bool replicated) {
    for (std::size_t p = 0; p < values.values.size(); ++p) {
      const parallel::ParameterSpec& spec = bench_.spec(replicated).parameters[p];
      if (!spec.frozen) compare(values.values[p], gradients.values[p], spec.name);
    }
  };
  all(*bench_.unit, d_unit, false);
  all(*bench_.replicated, d_replicated, true);
}

TEST_P(Sublayers, UsesTheBytesThatItPlans) {
  Numbers d_unit(bench_.spec(false), true), d_replicated(bench_.spec(true), true);
  bench_.backward(d_unit, d_replicated);
  EXPECT_EQ(bench_.used_saved(), bench_.planned_saved);
  EXPECT_EQ(bench_.used_scratch(), bench_.planned_scratch);
  EXPECT_EQ(bench_.allocated, 0);
  op_test::expect_counted_allocation();
}

void check_documents(const ModelConfig& config, Part part) {
  Bench bench(config, part, Keep::kAll);
  const std::vector<double> want = bench.output();
  // Row 0 is tokens [0, 5), [5, 6) and [6, 12).
  constexpr std::size_t kLast = 6 * 16;
  std::fill_n(bench.x.begin(), kLast, std::numeric_limits<double>::quiet_NaN());
  const std::vector<double> got = bench.output();
  for (std::size_t i = kLast; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << i;
  EXPECT_TRUE(std::isnan(got[0]));
}

TEST(MixerDocuments, ANeighbourCannotBeSeen) {
  check_documents(model_test::hybrid_model(), Part::kKda);
  check_documents(model_test::mla_nope_model(), Part::kMla);
  check_documents(model_test::mla_rope_model(), Part::kMla);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Sublayers, testing::ValuesIn(cases()),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace k25::trainer
