#include <algorithm>

#include "kernels/gemm/gemm.h"
#include "trainer/model/block.h"

namespace k25::trainer {
namespace {

using kernels::Accumulate;
using kernels::GemmDesc;
using kernels::Transpose;

DType gradient_dtype(DType compute) {
  return compute == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

GemmDesc forward_desc(const Linear& l) {
  return {.m = l.rows,
          .n = l.out,
          .k = l.in,
          .transpose_b = Transpose::kYes,
          .dtype_ab = l.compute,
          .dtype_d = l.compute,
          .device = l.device};
}

GemmDesc input_desc(const Linear& l) {
  return {.m = l.rows,
          .n = l.in,
          .k = l.out,
          .dtype_ab = l.compute,
          .dtype_d = l.compute,
          .device = l.device};
}

GemmDesc weight_desc(const Linear& l, Accumulate mode) {
  return {.m = l.out,
          .n = l.in,
          .k = l.rows,
          .transpose_a = Transpose::kYes,
          .dtype_ab = l.compute,
          .dtype_d = gradient_dtype(l.compute),
          .accumulate = mode,
          .device = l.device};
}

void run_gemm(BlockRun& run, const GemmDesc& desc, const ConstTensor& a, const ConstTensor& b,
              const Tensor& d) {
  kernels::gemm_forward(run.context, kernels::gemm_plan(desc), {a, b}, {d}, run.workspace);
}

}  // namespace

Bytes Linear::workspace_bytes() const {
  Bytes largest;
  for (const GemmDesc& desc :
       {forward_desc(*this), input_desc(*this), weight_desc(*this, Accumulate::kOverwrite),
        weight_desc(*this, Accumulate::kAdd)}) {
    largest = larger(largest, kernels::gemm_plan(desc).workspace_bytes);
  }
  return largest;
}

void Linear::forward(BlockRun& run, const ConstTensor& x, const ConstTensor& weight,
                     const Tensor& y) const {
  run_gemm(run, forward_desc(*this), x, weight, y);
}

void Linear::backward_input(BlockRun& run, const ConstTensor& d_y, const ConstTensor& weight,
                            const Tensor& d_x) const {
  run_gemm(run, input_desc(*this), d_y, weight, d_x);
}

void Linear::backward_weight(BlockRun& run, const ConstTensor& d_y, const ConstTensor& x,
                             const Tensor& d_weight, Accumulate mode) const {
  if (d_weight) run_gemm(run, weight_desc(*this, mode), d_y, x, d_weight);
}

}  // namespace k25::trainer
