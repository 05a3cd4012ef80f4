#include "trainer/plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/config/places.h"

namespace k25::trainer {
namespace {

constexpr std::int64_t kUsualNode = 8;  // GPUs

RunShape shape_on(const Config& config, Device device) {
  return {config.train.micro_batch, config.data.sequence, config.train.precision, device};
}

std::unique_ptr<Model> make_model(const ParsedConfig& parsed, Device device) {
  std::unique_ptr<Model> model;
  with_places(parsed, [&] {
    const Config& c = parsed.config;
    model = std::make_unique<Model>(c.model, shape_on(c, device), c.freeze, c.recompute);
  });
  return model;
}

std::optional<Bytes> budget_of(const Card& card) {
  if (!card.memory) return std::nullopt;
  const std::int64_t reserved = card.device == Device::kCuda ? kReservedOnGpu.n : 0;
  return Bytes{std::max<std::int64_t>(0, card.memory->n - reserved)};
}

CardPlan plan_on(const ParsedConfig& parsed, const Cluster& cluster, const Card& card) {
  const std::unique_ptr<Model> model = make_model(parsed, card.device);
  CardPlan plan{.card = card, .budget = budget_of(card)};
  with_places(parsed, [&] {
    constexpr Bytes kUnbounded{std::int64_t{1} << 62};
    plan.zero = resolve_zero(parsed.config, *model, plan.budget.value_or(kUnbounded));
    plan.memory = plan_memory(parsed.config, *model, plan.zero);
    plan.work = count_step(parsed.config, *model, plan.zero, cluster);
  });
  plan.time = predict_step(plan.work, card, parsed.config.train.precision, plan.zero.prefetch,
                           plan.why_no_time);
  return plan;
}

// Nodes are equal, so `parts` must divide the GPUs.
[[noreturn]] void refuse_shares(std::int64_t gpus, const char* option, std::int64_t parts) {
  const std::int64_t below = gpus / parts * parts;
  fail(ErrorKind::kUsage,
       fmt::format(
           "--gpus {}: {} {} does not divide it, and all nodes are equal; --gpus {}{} would "
           "do",
           gpus, option, parts, below > 0 ? fmt::format("{} or ", below) : "", below + parts));
}

std::string change_text(const std::vector<std::string>& overrides) {
  std::string text;
  for (const std::string& o : overrides) text += (text.empty() ? "--set " : " --set ") + o;
  return text;
}

}  // namespace

Cluster make_cluster(std::int64_t gpus, std::int64_t nodes, std::int64_t per_node) {
  if (gpus == 0 && (nodes == 0 || per_node == 0)) {
    fail(ErrorKind::kUsage,
         "how many GPUs? give --gpus N, or --nodes N together with --gpus-per-node N");
  }
  if (gpus == 0) gpus = checked_product(nodes, per_node);
  if (nodes != 0 && per_node == 0 && gpus % nodes == 0) per_node = gpus / nodes;
  if (nodes == 0 && per_node == 0) {
    per_node = std::min(gpus, kUsualNode);
    while (gpus % per_node != 0) --per_node;
  }
  if (per_node == 0) refuse_shares(gpus, "--nodes", nodes);
  if (nodes == 0 && gpus % per_node != 0) refuse_shares(gpus, "--gpus-per-node", per_node);
  if (nodes != 0 && nodes * per_node != gpus) {
    fail(ErrorKind::kUsage,
         fmt::format("--gpus {} = --nodes {} x --gpus-per-node {} does not hold; leave one of them "
                     "out",
                     gpus, nodes, per_node));
  }
  if (gpus > kMaxRanks) {
    fail(ErrorKind::kUsage, fmt::format("{} GPUs are more than k25 takes ({})", gpus, kMaxRanks));
  }
  return {.ranks = gpus, .per_node = per_node};
}

Planner::Planner(std::string text, std::string file, std::vector<std::string> overrides,
                 Cluster cluster)
    : text_(std::move(text)),
      file_(std::move(file)),
      overrides_(std::move(overrides)),
      cluster_(cluster),
      parsed_(parse_config(text_, file_, overrides_, cluster.ranks)),
      num_parameters_(make_model(parsed_, Device::kCpu)->num_parameters()) {}

CardPlan Planner::plan(const Card& card) const { return plan_on(parsed_, cluster_, card); }

std::optional<Variant> Planner::try_with(const Card& card,
                                         const std::vector<std::string>& overrides,
                                         const Cluster& cluster, const std::string& change) const {
  std::vector<std::string> all = overrides_;
  all.insert(all.end(), overrides.begin(), overrides.end());
  try {
    return Variant{change, plan_on(parse_config(text_, file_, all, cluster.ranks), cluster, card)};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUsage) throw;
    return std::nullopt;  // another key forbids it
  }
}

std::optional<Variant> Planner::largest_micro_batch(const Card& card,
                                                    const std::vector<std::string>& others) const {
  const TrainConfig& t = parsed_.config.train;
  const std::int64_t of_rank = t.micro_batch * t.accumulation;
  for (std::int64_t micro = t.micro_batch - 1; micro > 0; --micro) {
    if (of_rank % micro != 0) continue;
    std::vector<std::string> overrides = {fmt::format("train.batch={}", t.batch),
                                          fmt::format("train.micro_batch={}", micro),
                                          "train.accumulation=auto"};
    overrides.insert(overrides.end(), others.begin(), others.end());
    // The batch stays what it is, so it need not be said when the config says it.
    const std::vector<std::string> told(
        overrides.begin() + (parsed_.chosen.contains("train.batch") ? 0 : 1), overrides.end());
    auto found = try_with(card, overrides, cluster_, change_text(told));
    if (found && found->plan.fits()) return found;
  }
  return std::nullopt;
}

std::optional<Variant> Planner::more_ranks(const Card& card) const {
  constexpr std::int64_t kTried = 64;
  const std::int64_t step = cluster_.nodes() > 1 ? cluster_.per_node : 1;
  for (std::int64_t i = 1; i <= kTried; ++i) {
    Cluster cluster{cluster_.ranks + i * step, cluster_.per_node};
    if (cluster_.nodes() == 1) {  // fill the node, then add whole ones
      if (cluster.ranks <= kUsualNode) {
        cluster.per_node = cluster.ranks;
      } else {
        const std::int64_t nodes = i - std::max<std::int64_t>(0, kUsualNode - cluster_.ranks) + 1;
        cluster = {nodes * kUsualNode, kUsualNode};
      }
    }
    if (cluster.ranks <= cluster_.ranks || cluster.ranks > kMaxRanks) continue;
    auto found =
        try_with(card, {}, cluster,
                 fmt::format("--gpus {} --gpus-per-node {}", cluster.ranks, cluster.per_node));
    if (found && found->plan.fits()) return found;
  }
  return std::nullopt;
}

std::vector<std::vector<std::string>> Planner::changes() const {
  const Config& c = parsed_.config;
  const std::string all = "recompute.layers=all";
  // A slot of one micro-batch keeps the whole gradients of a few units only.
  const std::string slots = fmt::format("reduce.slots={}", c.train.batch / c.train.micro_batch);
  std::vector<std::vector<std::string>> changes;
  if (!c.recompute.cheap) changes.push_back({"recompute.cheap=true"});
  changes.push_back({all});
  if (c.offload.optimizer == parallel::Place::kDevice) {
    changes.push_back({"offload.optimizer=host"});
    changes.push_back({"offload.optimizer=host", "offload.params=host"});
  }
  if (c.reduce.mode == parallel::ReduceMode::kOrdered) {
    changes.push_back({slots});
    changes.push_back({"reduce.mode=library"});
    changes.push_back({all, slots});
  }
  return changes;
}

std::vector<Variant> Planner::ways_to_fit(const Card& card) const {
  std::vector<Variant> ways;
  const auto keep = [&](std::optional<Variant> found) {
    if (found && found->plan.fits()) ways.push_back(std::move(*found));
  };
  keep(largest_micro_batch(card, {}));
  for (const std::vector<std::string>& change : changes()) {
    keep(try_with(card, change, cluster_, change_text(change)));
  }
  keep(more_ranks(card));
  if (ways.empty()) keep(largest_micro_batch(card, {"recompute.cheap=true"}));
  if (ways.empty()) keep(largest_micro_batch(card, {"recompute.layers=all"}));
  if (ways.empty()) {
    keep(largest_micro_batch(
        card, {"recompute.layers=all", "zero.reshard_after=forward", "zero.prefetch=0"}));
  }
  return ways;
}

std::vector<Variant> Planner::recompute_variants(const Card& card) const {
  const Choice choices[] = {
      {"nothing", {"recompute.layers=[]", "recompute.cheap=false"}},
      {"cheap tensors", {"recompute.layers=[]", "recompute.cheap=true"}},
      {"middle band", {"recompute.layers=middle", "recompute.cheap=false"}},
      {"middle and cheap", {"recompute.layers=middle", "recompute.cheap=true"}},
      {"all layers", {"recompute.layers=all", "recompute.cheap=false"}},
      {"as configured", {}},
  };
  return try_all(card, choices);
}

std::vector<Variant> Planner::offload_variants(const Card& card) const {
  const Choice choices[] = {
      {"offload nothing", {"offload.optimizer=device", "offload.params=device"}},
      {"offload optimizer", {"offload.optimizer=host", "offload.params=device"}},
      {"offload optimizer, a third resident",
       {"offload.optimizer=host", "offload.params=device", "offload.resident=0.33"}},
      {"offload optimizer and params", {"offload.optimizer=host", "offload.params=host"}},
      {"offload as configured", {}},
  };
  return try_all(card, choices);
}

std::vector<Variant> Planner::try_all(const Card& card, std::span<const Choice> choices) const {
  std::vector<Variant> variants;
  for (const Choice& choice : choices) {
    if (auto found = try_with(card, choice.overrides, cluster_, choice.name)) {
      variants.push_back(std::move(*found));
    }
  }
  return variants;
}

}  // namespace k25::trainer
