// A layer with its experts spread over the ranks against the same layer on one rank.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/expert/expert_dispatcher.h"
#include "tests/kernels/moe/moe_layer.h"
#include "tests/mpi_main.h"

namespace k25::parallel {
namespace {

using moe_test::Layer;
using moe_test::LayerConfig;
using op_test::GuardedTensor;

constexpr std::int64_t kUnlimited = ExpertDispatcher::kUnlimited;

Communicator& comm() { return test_world().comm(); }
int rank() { return comm().rank(); }
int ranks() { return comm().size(); }

/// The hook of the layer, over the dispatcher.
class Dispatched : public moe_test::Exchange {
 public:
  Dispatched(Context& ctx, std::int64_t experts, std::int64_t capacity)
      : ctx_(ctx), dispatcher_(comm(), experts, capacity), route_(dispatcher_.make_route()) {}
  ExpertRange held() const { return dispatcher_.held(); }

  void route(const ConstTensor& count_E, const ConstTensor& /*offset_B*/) override {
    dispatcher_.start_counts("layer", count_E, route_).wait();
    dispatcher_.finish_counts(route_);
  }
  int rounds() const override { return route_.rounds(); }
  ConstTensor offset(int round) const override { return route_.offset(round); }
  void dispatch(int round, const ConstTensor& rows, const Tensor& held) override {
    const GuardedTensor staging(held.dtype(), {held.dim(0), held.dim(1)});
    dispatcher_.dispatch(ctx_, "layer", route_, round, {writable(rows), held, staging});
  }
  void collect(int round, const ConstTensor& held, const Tensor& rows) override {
    const GuardedTensor staging(held.dtype(), {held.dim(0), held.dim(1)});
    dispatcher_.collect(ctx_, "layer", route_, round, {rows, writable(held), staging});
  }

 private:
  /// ExpertRows serves both directions, so what is only read is a Tensor there too.
  static Tensor writable(const ConstTensor& t) {
    return {const_cast<void*>(t.raw()), t.dtype(), t.shape()};
  }
  Context& ctx_;
  ExpertDispatcher dispatcher_;
  ExpertRoute route_;
};

LayerConfig layer_config(std::int64_t tokens, std::int64_t latent, DType dtype) {
  return {.tokens = tokens,
          .hidden = 24,
          .experts = 10,
          .top_k = 3,
          .ffn = 7,
          .shared_ffn = 9,
          .latent = latent,
          .groups = 5,
          .top_groups = 3,
          .scale = 2.446,
          .dtype = dtype};
}

/// Values of whole tensors, of which a rank takes tokens or experts [begin, end). Weights are as
/// small as a model's, so that 1e-6 is some roundings of fp32.
void fill(GuardedTensor& t, std::string_view name, std::int64_t all, std::int64_t begin,
          std::int64_t end) {
  if (all == 0) return;
  const std::int64_t each = end == begin ? 0 : t.count() / (end - begin);
  const double middle = name == "latent_norm" ? 1 : 0;
  const double reach = name == "x" || name == "dy" ? 1 : 0.3;
  const std::vector<double> values =
      op_test::random_values(name, all * each, middle - reach, middle + reach);
  t.set(std::vector<double>(values.begin() + begin * each, values.begin() + end * each));
}

/// Tokens [begin, end) of `tokens`.
void fill(Layer& l, std::int64_t tokens, std::int64_t begin, std::int64_t end) {
  const LayerConfig& c = l.config;
  fill(l.x, "x", tokens, begin, end);
  fill(l.dy, "dy", tokens, begin, end);
  fill(l.gate_up, "gate_up", c.experts, c.first_expert, c.first_expert + c.held());
  fill(l.down, "down", c.experts, c.first_expert, c.first_expert + c.held());
  const auto whole = [](GuardedTensor& t, std::string_view name) { fill(t, name, 1, 0, 1); };
  whole(l.router, "router");
  whole(l.bias, "bias");
  whole(l.shared_gate_up, "shared_gate_up");
  whole(l.shared_down, "shared_down");
  whole(l.latent_down, "latent_down");
  whole(l.latent_norm, "latent_norm");
  whole(l.latent_up, "latent_up");
}

/// Elements of the first dimension [begin, end) of `all`.
std::vector<double> part_of(const GuardedTensor& t, std::int64_t all, std::int64_t begin,
                            std::int64_t end) {
  const std::vector<double> values = t.get();
  const std::int64_t each = all == 0 ? 0 : t.count() / all;
  return {values.begin() + begin * each, values.begin() + end * each};
}

std::vector<double> sum_over_ranks(const GuardedTensor& t) {
  std::vector<double> values = t.get();
  comm().all_reduce_small({"gradient"}, {.values = values.data(), .count = t.count()}).wait();
  return values;
}

/// |ours - expected| <= tolerance x the largest of expected (at least 1).
testing::AssertionResult near_largest(const std::vector<double>& ours,
                                      const std::vector<double>& expected, double tolerance) {
  double largest = 1;
  for (const double v : expected) largest = std::max(largest, std::abs(v));
  if (ours.size() != expected.size()) return testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (std::abs(ours[i] - expected[i]) <= tolerance * largest) continue;
    return testing::AssertionFailure() << "element " << i << " is " << ours[i] << ", expected "
                                       << expected[i] << " within " << tolerance * largest;
  }
  return testing::AssertionSuccess();
}

enum class Forward : std::uint8_t { kEqualBits, kNear };

struct LayerCase {
  std::vector<std::int64_t> tokens;  ///< of each rank, repeated
  std::int64_t latent, capacity;
  DType dtype;
  double tolerance;
  Forward forward;
};

void expect_as_on_one_rank(const LayerCase& c) {
  Context ctx = op_test::make_context();
  std::int64_t all = 0, begin = 0;
  for (int r = 0; r < ranks(); ++r) {
    if (r == rank()) begin = all;
    all += c.tokens[static_cast<std::size_t>(r) % c.tokens.size()];
  }
  const std::int64_t mine = c.tokens[static_cast<std::size_t>(rank()) % c.tokens.size()];
  const std::int64_t end = begin + mine;

  Layer one(layer_config(all, c.latent, c.dtype));
  fill(one, all, 0, all);
  moe_test::LocalExchange local;
  one.forward(ctx, local);
  one.backward(ctx, local);

  Dispatched exchange(ctx, one.config.experts, c.capacity);
  LayerConfig config = layer_config(mine, c.latent, c.dtype);
  config.first_expert = exchange.held().first;
  config.local_experts = exchange.held().count;
  Layer spread(config);
  fill(spread, all, begin, end);
  spread.forward(ctx, exchange);
  spread.backward(ctx, exchange);

  EXPECT_EQ(spread.index.get(), part_of(one.index, all, begin, end));
  if (c.forward == Forward::kEqualBits) {
    EXPECT_EQ(spread.weight.get(), part_of(one.weight, all, begin, end));
    EXPECT_EQ(spread.y.get(), part_of(one.y, all, begin, end));
  } else {
    EXPECT_TRUE(near_largest(spread.y.get(), part_of(one.y, all, begin, end), c.tolerance));
  }
  const auto expect = [&](std::string_view what, const std::vector<double>& ours,
                          const std::vector<double>& theirs) {
    EXPECT_TRUE(near_largest(ours, theirs, c.tolerance)) << what;
  };
  expect("x", spread.d_x.get(), part_of(one.d_x, all, begin, end));
  const std::int64_t first = config.first_expert, last = first + config.held();
  expect("gate_up", spread.d_gate_up.get(), part_of(one.d_gate_up, config.experts, first, last));
  expect("down", spread.d_down.get(), part_of(one.d_down, config.experts, first, last));
  expect("router", sum_over_ranks(spread.d_router), one.d_router.get());
  expect("shared_gate_up", sum_over_ranks(spread.d_shared_gate_up), one.d_shared_gate_up.get());
  expect("shared_down", sum_over_ranks(spread.d_shared_down), one.d_shared_down.get());
  if (c.latent == 0) return;
  expect("latent_down", sum_over_ranks(spread.d_latent_down), one.d_latent_down.get());
  expect("latent_norm", sum_over_ranks(spread.d_latent_norm), one.d_latent_norm.get());
  expect("latent_up", sum_over_ranks(spread.d_latent_up), one.d_latent_up.get());
}

// Token counts that are multiples of four: kernels/gemm computes rows in fours, so the products
// over tokens (router, shared experts, latent projections) have the bits of one rank's too.
TEST(ExpertParallelLayer, ForwardHasTheBitsOfOneRank) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const std::int64_t latent : {0, 16}) {
      SCOPED_TRACE("latent " + std::to_string(latent));
      expect_as_on_one_rank({{8, 0, 12, 4}, latent, kUnlimited, dtype, 1e-6, Forward::kEqualBits});
    }
  }
}

TEST(ExpertParallelLayer, AnyTokenCountsAndCapacities) {
  for (const std::int64_t latent : {0, 16}) {
    for (const std::int64_t capacity : {std::int64_t{5}, std::int64_t{20}, kUnlimited}) {
      for (const std::vector<std::int64_t>& tokens :
           std::vector<std::vector<std::int64_t>>{{5, 0, 7, 3}, {0, 9}, {1}}) {
        SCOPED_TRACE("latent " + std::to_string(latent) + ", capacity " + std::to_string(capacity) +
                     ", rank 0 has " + std::to_string(tokens[0]));
        expect_as_on_one_rank({tokens, latent, capacity, DType::kFloat64, 1e-12, Forward::kNear});
        expect_as_on_one_rank({tokens, latent, capacity, DType::kFloat32, 1e-6, Forward::kNear});
      }
    }
  }
}

}  // namespace
}  // namespace k25::parallel
