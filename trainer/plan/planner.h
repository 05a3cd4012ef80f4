#pragma once
// A run on a cluster that need not exist: the bytes by the code that allocates them, the time from
// ceilings.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/config/parse.h"
#include "trainer/plan/cards.h"
#include "trainer/plan/step_work.h"
#include "trainer/train/memory_plan.h"

namespace k25::trainer {

/// Where the GPUs stand, from what the user said; 0: not said. Throws kUsage naming the counts that
/// contradict each other.
Cluster make_cluster(std::int64_t gpus, std::int64_t nodes, std::int64_t per_node);

struct CardPlan {
  Card card;
  parallel::ZeroOptions zero;
  MemoryPlan memory;
  std::optional<Bytes> budget;  ///< for what is planned; absent: not checked
  StepWork work;
  std::optional<StepTime> time;
  std::string why_no_time;
  bool fits() const { return !budget || memory.total().n <= budget->n; }
};

/// A change of the run, with what it comes to.
struct Variant {
  std::string change;  ///< "--set recompute.cheap=true"
  CardPlan plan;
};

class Planner {
 public:
  /// `text` under the name `file`, with `overrides`, as parse_config takes them.
  Planner(std::string text, std::string file, std::vector<std::string> overrides, Cluster cluster);

  /// The resolved config. Errors are those of k25 config.
  const ParsedConfig& parsed() const { return parsed_; }
  const Cluster& cluster() const { return cluster_; }
  std::int64_t num_parameters() const { return num_parameters_; }

  CardPlan plan(const Card& card) const;

  /// What makes a run fit that does not, by trying: the largest micro_batch that fits, the changes
  /// below, more GPUs; when none of these does, the largest micro_batch with recompute.
  std::vector<Variant> ways_to_fit(const Card& card) const;

  /// The same run with nothing, the cheap tensors, the middle band, all layers recomputed, and as
  /// configured.
  std::vector<Variant> recompute_variants(const Card& card) const;
  /// The same run without offload, with the optimizer's state, part of it, and the parameters too
  /// on the host, and as configured.
  std::vector<Variant> offload_variants(const Card& card) const;

 private:
  struct Choice {
    const char* name;
    std::vector<std::string> overrides;
  };
  /// Those that resolve.
  std::vector<Variant> try_all(const Card& card, std::span<const Choice> choices) const;
  /// Empty when the config does not resolve with these.
  std::optional<Variant> try_with(const Card& card, const std::vector<std::string>& overrides,
                                  const Cluster& cluster, const std::string& change) const;
  /// Overrides worth trying.
  std::vector<std::vector<std::string>> changes() const;
  std::optional<Variant> largest_micro_batch(const Card& card,
                                             const std::vector<std::string>& others) const;
  std::optional<Variant> more_ranks(const Card& card) const;

  std::string text_, file_;
  std::vector<std::string> overrides_;
  Cluster cluster_;
  ParsedConfig parsed_;
  std::int64_t num_parameters_ = 0;
};

}  // namespace k25::trainer
