#include <fmt/format.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cli/commands.h"
#include "trainer/cli/options.h"
#include "trainer/plan/report.h"

namespace k25::trainer {
namespace {

struct PlanArguments {
  std::string config;
  std::vector<std::string> overrides, cards;
  std::int64_t gpus = 0, nodes = 0, per_node = 0;
  std::vector<double> prices;
  std::string ceilings;
  double network = 0.0;  // 0: the card's usual one
};

Card card_with_file(const PlanArguments& arguments) {
  if (arguments.cards.size() > 1) {
    fail(ErrorKind::kUsage,
         fmt::format("--ceilings are those of one card, and --gpu names {}; name "
                     "one, or none to plan for the machine of the file",
                     arguments.cards.size()));
  }
  const CeilingsFile file = read_ceilings(arguments.ceilings);
  const bool cpu = file.device == "cpu";
  Card card{.name = file.device, .device = cpu ? Device::kCpu : Device::kCuda};
  card.memory = file.memory;
  if (!arguments.cards.empty()) card = find_card(arguments.cards[0]);
  if (cpu != (card.device == Device::kCpu)) {
    fail(ErrorKind::kUsage, fmt::format("--ceilings {}: they are those of '{}', not of --gpu {}",
                                        arguments.ceilings, file.device, card.name));
  }
  card.ceilings = file.ceilings;
  card.source = Source::kCeilingsFile;
  return card;
}

std::vector<Card> cards_of(const PlanArguments& arguments) {
  std::vector<Card> cards;
  if (!arguments.ceilings.empty()) {
    cards.push_back(card_with_file(arguments));
  } else if (arguments.cards.empty()) {
    cards = known_cards();
  }
  std::set<std::string> seen;
  for (const std::string& name : arguments.cards) {
    if (!seen.insert(name).second) {
      fail(ErrorKind::kUsage, fmt::format("--gpu: {} is named twice; name it once", name));
    }
    if (arguments.ceilings.empty()) cards.push_back(find_card(name));
  }
  if (arguments.network > 0.0) {
    for (Card& card : cards) card.network_gb = arguments.network;
  }
  return cards;
}

void check_prices(const std::vector<double>& prices, std::size_t cards) {
  if (prices.size() <= 1 || prices.size() == cards) return;
  fail(
      ErrorKind::kUsage,
      fmt::format("--price-per-gpu-hour: {} prices for {} cards; give one for all, or one for each",
                  prices.size(), cards));
}

void explain(const PlanReport& report) {
  bool estimated = false;
  for (const CardPlan& plan : report.plans) estimated |= plan.card.source == Source::kEstimated;
  fmt::print(
      "\nThe step is a floor: every part at its ceiling, transfers beside computing where the "
      "run overlaps them.\n");
  if (estimated) {
    fmt::print(
        "estimated: the vendor's figures, times what an H200 was measured to sustain of its "
        "own.\n");
  }
  if (report.planner.cluster().nodes() > 1) {
    fmt::print("The network is assumed, not measured (--network-gb-per-s).\n");
  }
}

void run_plan(const PlanArguments& arguments) {
  const std::vector<Card> cards = cards_of(arguments);
  check_prices(arguments.prices, cards.size());
  const Cluster cluster = make_cluster(arguments.gpus, arguments.nodes, arguments.per_node);
  const Planner planner(read_config_file(arguments.config), arguments.config, arguments.overrides,
                        cluster);
  for (const std::string& warning : planner.parsed().warnings) {
    fmt::print(stderr, "k25: warning: {}\n", warning);
  }
  std::vector<CardPlan> plans;
  for (const Card& card : cards) plans.push_back(planner.plan(card));
  const PlanReport report{planner, plans, {arguments.prices}};
  fmt::print("{}\n{}\n{}\n{}\n{}\n{}", report_run(report), report_memory(report),
             report_traffic(report), report_time(report),
             report_recompute(planner.recompute_variants(cards.front())),
             report_offload(report, planner.offload_variants(cards.front())));
  explain(report);
  std::size_t fitting = 0;
  for (const CardPlan& plan : plans) {
    fitting += plan.fits() ? 1 : 0;
    if (!plan.fits()) fmt::print("\n{}", report_ways(plan, planner.ways_to_fit(plan.card)));
  }
  if (fitting > 0) return;
  fail(ErrorKind::kUsage,
       cards.size() == 1
           ? fmt::format("the run does not fit on {}; what would make it fit stands above",
                         cards[0].name)
           : "the run fits on none of these cards; what would make it fit stands above");
}

}  // namespace

Command add_plan(CLI::App& root) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* app = root.add_subcommand(
      "plan", "memory, traffic, time and price on any cluster; needs no GPU and no MPI");
  app->add_option("CONFIG", arguments->config, "YAML file")->required();
  app->add_option("--set", arguments->overrides, "override one key: a.b=value (repeatable)")
      ->allow_extra_args(false);
  app->add_option("--gpus", arguments->gpus, "GPUs in all")
      ->transform(integer_option(1, kMaxRanks));
  app->add_option("--nodes", arguments->nodes, "equal nodes")
      ->transform(integer_option(1, kMaxRanks));
  app->add_option("--gpus-per-node", arguments->per_node, "at most 8 when it is not given")
      ->transform(integer_option(1, kMaxRanks));
  app->add_option("--gpu", arguments->cards,
                  "cards side by side: a100-40,h200 (repeatable); cpu; all when none is named")
      ->delimiter(',')
      ->allow_extra_args(false);
  app->add_option("--price-per-gpu-hour", arguments->prices, "one for all cards, or one for each")
      ->delimiter(',')
      ->transform(number_option({}))
      ->allow_extra_args(false);
  app->add_option("--ceilings", arguments->ceilings, "what k25 doctor --measure wrote");
  app->add_option("--network-gb-per-s", arguments->network, "between nodes, of one GPU")
      ->transform(number_option({.low_bound = Bound::kExclusive}));
  return {app, Needs::kNothing, [arguments](const CommandContext&) { run_plan(*arguments); }};
}

}  // namespace k25::trainer
