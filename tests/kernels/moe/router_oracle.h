#pragma once
// Operands and the definition of the router, for its tests.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/moe/router.h"
#include "tests/kernels/op_test.h"

namespace k25::moe_test {

using kernels::MoeRouterDesc;
using kernels::NormalizeWeights;
using op_test::GuardedTensor;

inline MoeRouterDesc router_desc(std::int64_t tokens, std::int64_t experts, std::int64_t top_k,
                                 DType dtype = DType::kFloat64) {
  return {.tokens = tokens, .experts = experts, .top_k = top_k, .dtype = dtype};
}

/// The operands of both directions.
struct RouterProblem {
  explicit RouterProblem(const MoeRouterDesc& d, op_test::Layout layout = {})
      : desc(d),
        logits(op_test::random_tensor("logits", d.dtype, {d.tokens, d.experts}, layout, -3, 3)),
        bias(op_test::random_tensor("bias", d.dtype, {d.experts}, {}, -0.3, 0.3)),
        scores(d.dtype, {d.tokens, d.experts}, layout),
        weight(d.dtype, {d.tokens, d.top_k}, layout),
        dweight(op_test::random_tensor("dweight", d.dtype, {d.tokens, d.top_k}, layout)),
        dscores(op_test::random_tensor("dscores", d.dtype, {d.tokens, d.experts}, layout)),
        dlogits(d.dtype, {d.tokens, d.experts}, layout),
        index(DType::kInt32, {d.tokens, d.top_k}, layout) {}

  void forward(Context& ctx) const {
    kernels::moe_router_forward(ctx, kernels::moe_router_plan(desc),
                                {.logits_NE = logits, .bias_E = bias},
                                {.scores_NE = scores, .weight_NK = weight, .index_NK = index}, {});
  }
  void backward(Context& ctx) const {
    kernels::moe_router_backward(
        ctx, kernels::moe_router_plan(desc),
        {.dweight_NK = dweight, .scores_NE = scores, .index_NK = index, .dscores_NE = dscores},
        {.dlogits_NE = dlogits}, {});
  }
  bool guards_intact() const {
    return scores.guards_intact() && weight.guards_intact() && index.guards_intact() &&
           dlogits.guards_intact();
  }

  MoeRouterDesc desc;
  GuardedTensor logits, bias, scores, weight, dweight, dscores, dlogits, index;
};

struct Routed {
  std::vector<double> scores, weight, index;
};

/// The definition: whole sorts, in double.
inline Routed naive_routing(const RouterProblem& p) {
  const MoeRouterDesc& d = p.desc;
  Routed out;
  const std::int64_t size = d.experts / d.groups;
  for (std::int64_t n = 0; n < d.tokens; ++n) {
    std::vector<double> s, c;
    for (std::int64_t i = 0; i < d.experts; ++i) {
      s.push_back(1 / (1 + std::exp(-p.logits.get(n * d.experts + i))));
      c.push_back(s.back() + p.bias.get(i));
    }
    std::vector<std::pair<double, std::int64_t>> groups;
    for (std::int64_t g = 0; g < d.groups; ++g) {
      std::vector<double> members(c.begin() + g * size, c.begin() + (g + 1) * size);
      std::sort(members.rbegin(), members.rend());
      groups.emplace_back(-(members[0] + (size > 1 ? members[1] : 0)), g);
    }
    std::sort(groups.begin(), groups.end());
    std::vector<std::pair<double, std::int64_t>> candidates;
    for (std::int64_t h = 0; h < d.top_groups; ++h) {
      for (std::int64_t i = groups[h].second * size; i < (groups[h].second + 1) * size; ++i) {
        candidates.emplace_back(-c[i], i);
      }
    }
    std::sort(candidates.begin(), candidates.end());
    std::vector<std::int64_t> chosen;
    for (std::int64_t k = 0; k < d.top_k; ++k) chosen.push_back(candidates[k].second);
    std::sort(chosen.begin(), chosen.end());
    double sum = 1e-20;
    for (const std::int64_t i : chosen) sum += s[i];
    if (d.normalize == NormalizeWeights::kNo) sum = 1;
    for (const std::int64_t i : chosen) {
      out.index.push_back(static_cast<double>(i));
      out.weight.push_back(s[i] / sum * d.scale);
    }
    out.scores.insert(out.scores.end(), s.begin(), s.end());
  }
  return out;
}

/// Shapes with and without groups: one expert, all experts chosen, more experts than a vector.
inline std::vector<MoeRouterDesc> router_shapes(DType dtype) {
  std::vector<MoeRouterDesc> all;
  for (const std::int64_t tokens : {0, 1, 5, 33}) {
    for (const auto& [experts, top_k] :
         {std::pair{1, 1}, {2, 1}, {7, 7}, {16, 3}, {33, 4}, {64, 8}}) {
      all.push_back(router_desc(tokens, experts, top_k, dtype));
      all.back().normalize = NormalizeWeights::kNo;
      all.push_back(router_desc(tokens, experts, top_k, dtype));
      all.back().scale = 2.446;
    }
    MoeRouterDesc grouped = router_desc(tokens, 32, 4, dtype);
    for (const auto& [groups, top_groups] :
         {std::pair{8, 4}, {4, 2}, {8, 1}, {32, 4}, {2, 2}, {16, 5}}) {
      grouped.groups = groups;
      grouped.top_groups = top_groups;
      all.push_back(grouped);
    }
  }
  return all;
}

inline std::string describe(const MoeRouterDesc& d) {
  return std::to_string(d.tokens) + " tokens, " + std::to_string(d.top_k) + " of " +
         std::to_string(d.experts) + " experts, " + std::to_string(d.top_groups) + " of " +
         std::to_string(d.groups) + " groups";
}

}  // namespace k25::moe_test
