#include "kernels/moe/router_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

/// Added to the sum of the chosen scores: weights of all-zero scores are 0, not NaN.
constexpr double kTiny = 1e-20;

/// The order of the choice: NaN above all numbers, equal ones not above each other.
template <class T>
bool above(T a, T b) {
  return a > b || (a != a && b == b);
}

/// The K largest so far of candidates that come in ascending order of their index, best first.
template <class T>
struct Best {
  T* value;
  std::int32_t* index;
  std::int64_t size, capacity;

  void take(T candidate, std::int64_t i) {
    if (size == capacity && !above(candidate, value[size - 1])) return;
    std::int64_t at = size < capacity ? size++ : size - 1;
    // NOTE: equal values keep their order, so the lower index stays ahead.
    for (; at > 0 && above(candidate, value[at - 1]); --at) {
      value[at] = value[at - 1];
      index[at] = index[at - 1];
    }
    value[at] = candidate;
    index[at] = static_cast<std::int32_t>(i);
  }
};

template <class T>
T choice_score(const T* scores, const T* bias, std::int64_t i) {
  return bias == nullptr ? scores[i] : scores[i] + bias[i];
}

/// Bit g is set for each group that can be chosen from.
template <class T>
std::uint64_t chosen_groups(const MoeRouterForwardArgs<T>& a, const T* scores) {
  T group[kMoeMaxGroups];
  std::int32_t chosen[kMoeMaxGroups];
  T chosen_value[kMoeMaxGroups];
  const std::int64_t size = a.experts / a.groups;
  Best<T> best{chosen_value, chosen, 0, a.top_groups};
  for (std::int64_t g = 0; g < a.groups; ++g) {
    T two[2];
    std::int32_t unused[2];
    Best<T> largest{two, unused, 0, size < 2 ? size : 2};
    for (std::int64_t i = g * size; i < (g + 1) * size; ++i) {
      largest.take(choice_score(scores, a.bias, i), i);
    }
    group[g] = largest.size == 2 ? two[0] + two[1] : two[0];
    best.take(group[g], g);
  }
  std::uint64_t bits = 0;
  for (std::int64_t k = 0; k < best.size; ++k) bits |= std::uint64_t{1} << chosen[k];
  return bits;
}

/// Fills the row's index with the chosen experts, in ascending order; `value` is scratch.
template <class T>
void choose(const MoeRouterForwardArgs<T>& a, const T* scores, T* value, std::int32_t* index) {
  Best<T> best{value, index, 0, a.top_k};
  const bool limited = a.top_groups < a.groups;
  const std::uint64_t groups = limited ? chosen_groups(a, scores) : 0;
  const std::int64_t size = limited ? a.experts / a.groups : a.experts;
  for (std::int64_t begin = 0, g = 0; begin < a.experts; begin += size, ++g) {
    if (limited && (groups >> g & 1) == 0) continue;
    for (std::int64_t i = begin; i < begin + size; ++i) {
      best.take(choice_score(scores, a.bias, i), i);
    }
  }
  for (std::int64_t k = 1; k < a.top_k; ++k) {
    const std::int32_t moving = index[k];
    std::int64_t at = k;
    for (; at > 0 && index[at - 1] > moving; --at) index[at] = index[at - 1];
    index[at] = moving;
  }
}

template <class T>
T chosen_sum(const T* scores, const std::int32_t* index, std::int64_t top_k) {
  T sum = scores[index[0]];
  for (std::int64_t k = 1; k < top_k; ++k) sum += scores[index[k]];
  return sum + static_cast<T>(kTiny);
}

template <class T>
void sigmoid_row(const T* logits, T* scores, std::int64_t n) {
#pragma GCC ivdep  // scores are logits, element by element, or apart
  for (std::int64_t i = 0; i < n; ++i) scores[i] = 1 / (1 + exp_approx(-logits[i]));
}

template <class T>
void forward(const MoeRouterForwardArgs<T>& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    T* const scores = a.scores + n * a.scores_stride;
    T* const weight = a.weight + n * a.weight_stride;
    std::int32_t* const index = a.index + n * a.index_stride;
    sigmoid_row(a.logits + n * a.logits_stride, scores, a.experts);
    choose(a, scores, weight, index);
    const T sum = a.normalize ? chosen_sum(scores, index, a.top_k) : T(1);
    for (std::int64_t k = 0; k < a.top_k; ++k) {
      const T c = choice_score(scores, a.bias, index[k]);
      weight[k] = c == c ? scores[index[k]] / sum * a.scale : c;
    }
  }
}

template <class T>
void backward(const MoeRouterBackwardArgs<T>& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const T* const s = a.scores + n * a.scores_stride;
    const T* const dweight = a.dweight + n * a.dweight_stride;
    const std::int32_t* const index = a.index + n * a.index_stride;
    const T* const dscores = a.dscores == nullptr ? nullptr : a.dscores + n * a.dscores_stride;
    T* const dz = a.dlogits + n * a.dlogits_stride;
    for (std::int64_t i = 0; i < a.experts; ++i) dz[i] = dscores == nullptr ? T(0) : dscores[i];
    T sum = 1, inner = 0;
    if (a.normalize) {
      sum = chosen_sum(s, index, a.top_k);
      for (std::int64_t k = 0; k < a.top_k; ++k) inner += dweight[k] * (s[index[k]] / sum);
    }
    for (std::int64_t k = 0; k < a.top_k; ++k) {
      dz[index[k]] += a.scale * (dweight[k] - inner) / sum;
    }
    for (std::int64_t i = 0; i < a.experts; ++i) dz[i] = dz[i] * (s[i] * (1 - s[i]));
  }
}

}  // namespace

#define K25_MOE_ROUTER_DEFINE(T)                                                         \
  void moe_router_forward_cpu(const MoeRouterForwardArgs<T>& args, std::int64_t begin,   \
                              std::int64_t end) {                                        \
    forward(args, begin, end);                                                           \
  }                                                                                      \
  void moe_router_backward_cpu(const MoeRouterBackwardArgs<T>& args, std::int64_t begin, \
                               std::int64_t end) {                                       \
    backward(args, begin, end);                                                          \
  }
K25_MOE_ROUTER_DEFINE(float)
K25_MOE_ROUTER_DEFINE(double)
#undef K25_MOE_ROUTER_DEFINE

}  // namespace k25::kernels::K25_ISA
