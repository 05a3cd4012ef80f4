#pragma once
// Runs one Problem on the GPU. Only targets that are built with CUDA include it.

#include <cstdint>
#include <vector>

#include "tests/kernels/attention/attention_oracle.h"
#include "tests/kernels/cuda_test.h"

namespace k25::attention_test {

inline AttentionDesc on_gpu(AttentionDesc d) {
  d.device = Device::kCuda;
  return d;
}

/// Both directions, results in the problem's host tensors.
inline void run_on_gpu(Context& gpu, Problem& p) {
  using op_test::OnGpu;
  const auto plan = kernels::attention_plan(on_gpu(p.desc));
  const op_test::GpuScratch scratch(gpu, plan.workspace_bytes);
  const OnGpu q(gpu, p.q), k(gpu, p.k), v(gpu, p.v), out(gpu, p.out), lse(gpu, p.lse);
  const OnGpu dout(gpu, p.dout), dq(gpu, p.dq), dk(gpu, p.dk), dv(gpu, p.dv);
  const OnGpu doc_begin(gpu, p.doc_begin), doc_end(gpu, p.doc_end);
  const ConstTensor begins = p.documents.empty() ? ConstTensor() : ConstTensor(doc_begin);
  const ConstTensor ends = p.documents.empty() ? ConstTensor() : ConstTensor(doc_end);
  kernels::attention_forward(gpu, plan, {q, k, v, begins, ends}, {out, lse}, scratch.workspace());
  kernels::attention_backward(gpu, plan, {q, k, v, begins, ends, out, lse, dout}, {dq, dk, dv},
                              scratch.workspace());
  for (const OnGpu* t : {&q, &k, &v, &out, &lse, &dout, &dq, &dk, &dv}) t->fetch();
}

/// Everything the op wrote, bit by bit.
inline std::vector<std::uint8_t> all_bits(const Problem& p) {
  std::vector<std::uint8_t> bits;
  for (const GuardedTensor* t : {&p.out, &p.lse, &p.dq, &p.dk, &p.dv}) {
    const auto more = t->bits();
    bits.insert(bits.end(), more.begin(), more.end());
  }
  return bits;
}

/// The elements of tokens [begin, end) of a [1, T, heads, E] tensor.
inline std::vector<double> tokens_of(const GuardedTensor& t, std::int64_t tokens,
                                     std::int64_t begin, std::int64_t end) {
  const std::int64_t row = t.count() / tokens;
  const auto all = t.get();
  return {all.begin() + begin * row, all.begin() + end * row};
}

}  // namespace k25::attention_test
