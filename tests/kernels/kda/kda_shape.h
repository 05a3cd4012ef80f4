#pragma once
// Sizes and gates of the test problems.

#include <cstdint>
#include <functional>

#include "kernels/kda/kda.h"

namespace k25::kda_test {

using kernels::KdaDesc;
using kernels::KdaForm;
using kernels::KdaKeep;

inline DType sum_dtype(DType t) { return t == DType::kFloat64 ? t : DType::kFloat32; }

/// batch rows of tokens; heads, value heads, key and value dim.
struct Shape {
  std::int64_t batch = 1, tokens = 0, heads = 1, value_heads = 1, key_dim = 8, value_dim = 8;
};

inline KdaDesc desc_of(const Shape& s, DType dtype = DType::kFloat64,
                       KdaForm form = KdaForm::kChunked) {
  KdaDesc d;
  d.batch = s.batch;
  d.tokens = s.tokens;
  d.heads = s.heads;
  d.value_heads = s.value_heads;
  d.key_dim = s.key_dim;
  d.value_dim = s.value_dim;
  d.dtype = dtype;
  d.form = form;
  return d;
}

/// g of a token and channel, from a uniform number in (0, 1).
using Gate = std::function<double(std::int64_t token, double uniform)>;
inline Gate constant_gate(double g) {
  return [g](std::int64_t, double) { return g; };
}

}  // namespace k25::kda_test
