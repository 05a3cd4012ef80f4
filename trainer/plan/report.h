#pragma once
// The plan as text: tables with a column for each card.

#include <optional>
#include <string>
#include <vector>

#include "trainer/plan/planner.h"

namespace k25::trainer {

struct Prices {
  std::vector<double> per_gpu_hour;  ///< empty: not asked; one for all cards, or one for each
};

/// `plans`: one for each card.
struct PlanReport {
  const Planner& planner;
  const std::vector<CardPlan>& plans;
  const Prices& prices;
};

std::string report_run(const PlanReport& report);      ///< model, batch, FLOPs
std::string report_memory(const PlanReport& report);   ///< bytes and GiB by category; does it fit
std::string report_traffic(const PlanReport& report);  ///< over the wire, a step
std::string report_time(const PlanReport& report);     ///< predicted step, tokens/s, price
/// What each choice of recompute saves and costs, against the first.
std::string report_recompute(const std::vector<Variant>& variants);
/// Of a GPU: states, activations and buffers with and without offload.
std::string report_offload(const PlanReport& report, const std::vector<Variant>& variants);
/// For a card that is too small.
std::string report_ways(const CardPlan& plan, const std::vector<Variant>& ways);

}  // namespace k25::trainer
