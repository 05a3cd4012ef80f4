#pragma once
// A whole mixture-of-experts layer made of the ops, as the tests use it; with the hook by which
// experts can live on other ranks.
//
//   y = shared(x) + U norm(sum over k of w_k expert_k(D x)),  without D, norm and U where latent =
//   0.
//
// The norm (RMSNorm) needs the complete sum, so it comes after the combine, never before.

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/moe/router.h"
#include "tests/kernels/op_test.h"

namespace k25::moe_test {

using op_test::GuardedTensor;

struct LayerConfig {
  std::int64_t tokens = 0, hidden = 0, experts = 0, top_k = 0, ffn = 0;
  std::int64_t shared_ffn = 0;  ///< 0: no shared experts
  std::int64_t latent = 0;      ///< 0: experts work at full width
  std::int64_t groups = 1, top_groups = 1;
  kernels::NormalizeWeights normalize = kernels::NormalizeWeights::kYes;
  double scale = 1.0, balance = 0.0;
  DType dtype = DType::kFloat64;
  std::int64_t first_expert = 0, local_experts = -1;  ///< those that live here; -1: all

  std::int64_t width() const { return latent > 0 ? latent : hidden; }
  std::int64_t held() const { return local_experts < 0 ? experts : local_experts; }
};

/// Where rows sorted by expert go to be computed, and come back from. One row's way there and back
/// is the same, so each direction is the other's adjoint.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// After the sort: the rows of each expert, and their borders.
  virtual void route(const ConstTensor& count_E, const ConstTensor& offset_B) = 0;
  virtual int rounds() const = 0;
  /// Borders of the held experts' rows of a round, [held + 1] int64.
  virtual ConstTensor offset(int round) const = 0;
  /// rows: of all rounds, at the tokens' side; held: of one round, at the experts' side.
  virtual void dispatch(int round, const ConstTensor& rows, const Tensor& held) = 0;
  virtual void collect(int round, const ConstTensor& held, const Tensor& rows) = 0;
};

/// All experts are here: one round, plain copies.
class LocalExchange : public Exchange {
 public:
  void route(const ConstTensor& /*count_E*/, const ConstTensor& offset_B) override {
    offset_ = offset_B;
  }
  int rounds() const override { return 1; }
  ConstTensor offset(int /*round*/) const override { return offset_; }
  void dispatch(int /*round*/, const ConstTensor& rows, const Tensor& held) override {
    copy(rows, held);
  }
  void collect(int /*round*/, const ConstTensor& held, const Tensor& rows) override {
    copy(held, rows);
  }

 private:
  static void copy(const ConstTensor& from, const Tensor& to) {
    std::memcpy(to.raw(), from.raw(), static_cast<std::size_t>(from.bytes().n));
  }
  ConstTensor offset_;
};

/// Parameters, activations and gradients of one layer. Names of tensors are those of
/// scripts/golden/moe_golden.py.
class Layer {
 public:
  explicit Layer(const LayerConfig& config);

  /// Fills y, index, weight and balance_loss.
  void forward(Context& ctx, Exchange& exchange);
  /// From dy: gradients of x and of all parameters, cleared first. Repeats what forward did at the
  /// experts' side instead of having kept it.
  void backward(Context& ctx, Exchange& exchange);

  LayerConfig config;
  GuardedTensor x, dy, router, bias, gate_up, down;
  GuardedTensor shared_gate_up, shared_down, latent_down, latent_norm, latent_up;
  GuardedTensor y, index, weight, count;
  double balance_loss = 0;
  GuardedTensor d_x, d_router, d_gate_up, d_down;
  GuardedTensor d_shared_gate_up, d_shared_down, d_latent_down, d_latent_norm, d_latent_up;

 private:
  void route(Context& ctx);
  void run_experts(Context& ctx, Exchange& exchange);
  void run_latent_tail(Context& ctx);
  void run_shared(Context& ctx);
  void shared_backward(Context& ctx);
  void latent_tail_backward(Context& ctx);
  void experts_backward(Context& ctx, Exchange& exchange);
  void router_backward(Context& ctx);

  GuardedTensor tensor(std::vector<std::int64_t> shape) const {
    return GuardedTensor(config.dtype, std::move(shape));
  }
  std::int64_t rows() const { return config.tokens * config.top_k; }

  GuardedTensor scores_, dweight_, dscores_, dlogits_, fraction_, start_;
  GuardedTensor offset_, row_, choice_;
  GuardedTensor narrow_, permuted_, expert_rows_, combined_, normed_,
      rstd_;  // narrow_: x at expert width
  GuardedTensor shared_pair_, shared_act_, d_shared_pair_, d_narrow_, d_combined_, d_normed_,
      d_rows_;
};

}  // namespace k25::moe_test
