#pragma once
// Sizes and gates of the test problems.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

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

struct NamedGate {
  const char* name;
  Gate gate;
};

/// Strengths from nothing to forgetting all, alone and next to each other.
inline std::vector<NamedGate> gates() {
  return {
      {"0", constant_gate(0)},
      {"-1e-3", constant_gate(-1e-3)},
      {"-1", constant_gate(-1)},
      {"-5", constant_gate(-5)},
      {"-30", constant_gate(-30)},
      {"-1000", constant_gate(-1000)},
      {"-inf", constant_gate(-HUGE_VAL)},
      {"(-8, 0)", [](std::int64_t, double u) { return -8 * u; }},
      {"any of them",
       [](std::int64_t, double u) {
         constexpr double kAll[] = {0, -1e-3, -1, -5, -30, -1000};
         return kAll[std::min(5, static_cast<int>(u * 6))];
       }},
      {"tiny, at every 21st token huge",
       [](std::int64_t t, double u) { return t % 21 == 20 ? -1000.0 : -1e-3 * u; }},
      {"huge, at every 21st token tiny",
       [](std::int64_t t, double u) { return t % 21 == 20 ? -1e-3 * u : -1000.0; }},
  };
}

}  // namespace k25::kda_test
