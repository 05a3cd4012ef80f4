#pragma once
// One layer: the residual stream h passes a mixer and a feed-forward, each behind an RMSNorm.
//   s = h + mixer(norm1(h));   out = s + ffn(norm2(s))
// Its gradients have the same bits whatever it keeps between forward and backward.

#include <memory>

#include "kernels/residual/residual.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "trainer/config/config.h"
#include "trainer/model/block.h"

namespace k25::trainer {

/// Rows of the residual stream: x, or x + update, which their next norm adds.
struct StreamRows {
  ConstTensor x_ND;
  ConstTensor update_ND;  ///< absent: the rows are x
  Tensor sum_ND;          ///< where the norm writes x + update; it may be x
  ConstTensor rows() const { return update_ND ? ConstTensor(sum_ND) : x_ND; }
};

/// y = norm(rows); rows that are a sum are there afterwards.
void norm_rows(BlockRun& run, const kernels::RmsNormPlan& plan, const StreamRows& rows,
               const ConstTensor& gain_D, const Tensor& y_ND, const Tensor& rstd_N);

class Layer {
 public:
  /// `check` (with Keep::kInput): backward compares the output that it forms again with forward's
  /// and throws kInternal for the first element that differs. The host waits for it.
  enum class Check : std::uint8_t { kNo, kYes };
  /// `rope_tables` outlives the layer.
  Layer(const ModelConfig& model, const RunShape& shape, int index, Keep keep, Check check,
        const RopeTables& rope_tables, UnitBuilder& unit, UnitBuilder& replicated);

  /// Of the feed-forward's correction bias in the replicated unit; -1 without experts.
  int correction_bias_index() const { return correction_bias_index_; }

  Bytes workspace_bytes() const;
  void measure(Arena& saved, Arena& scratch);
  /// Draws what it keeps, room for its output included, from run.saved. Returns its output, whose
  /// update lies in `update_ND`, as that of h may.
  StreamRows forward(BlockRun& run, const ParameterViews& parameters, const StreamRows& h,
                     const Tensor& update_ND);
  /// `d_ND` holds the gradient of the output and receives the gradient of h. h is forward's h.
  void backward(BlockRun& run, const ParameterViews& parameters, const ParameterViews& gradients,
                const ConstTensor& h_ND, const Tensor& d_ND);

 private:
  Tensor take_rows(Arena& arena) const;  // [N, D]
  /// Draws the tensors between input and output, in `inner` or, when they are formed anew each
  /// time, in `scratch`.
  void take_inner(Arena& inner, Arena& scratch);
  /// Everything up to the feed-forward's update of the stream, which goes to `update`.
  void run_inner(BlockRun& run, const ParameterViews& parameters, const StreamRows& h,
                 const Tensor& update_ND);
  void run_again(BlockRun& run, const ParameterViews& parameters, const ConstTensor& h_ND);
  void compare_output(BlockRun& run, const Tensor& update_ND) const;
  void norm_again(BlockRun& run, const ConstTensor& x_ND, const ConstTensor& gain_D,
                  const Tensor& y_ND, const Tensor& rstd_N) const;

  RunShape shape_;
  int index_;
  Keep keep_;
  Check check_;
  std::int64_t hidden_;
  kernels::RmsNormPlan norm_;
  kernels::ResidualPlan residual_;
  std::unique_ptr<Sublayer> mixer_, feed_forward_;
  int norm1_index_, norm2_index_;
  int correction_bias_index_ = -1;
  struct Inner {
    Tensor y1, rstd1, sum, y2, rstd2;
  } inner_;
  Tensor out_;
};

}  // namespace k25::trainer
