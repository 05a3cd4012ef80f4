#include "trainer/plan/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "trainer/plan/table.h"

namespace k25::trainer {
namespace {

constexpr const char* kNone = "n/a";

std::string both(Bytes bytes) {
  return fmt::format("{} bytes ({} GiB)", bytes.n, gib_text(static_cast<double>(bytes.n)));
}

std::string counted(std::int64_t n, const std::string& one, const std::string& many) {
  return fmt::format("{} {}", n, n == 1 ? one : many);
}

std::vector<std::string> card_names(const PlanReport& report) {
  std::vector<std::string> names;
  for (const CardPlan& plan : report.plans) names.push_back(plan.card.name);
  return names;
}

using Cell = std::function<std::string(const CardPlan&)>;
void add_row(Table& table, const PlanReport& report, const std::string& label, const Cell& cell) {
  std::vector<std::string> cells;
  for (const CardPlan& plan : report.plans) cells.push_back(cell(plan));
  table.add(label, std::move(cells));
}

/// The same number in bytes or in GiB.
enum class Unit : std::uint8_t { kBytes, kGib };
std::string amount(Bytes bytes, Unit unit) {
  return unit == Unit::kBytes ? std::to_string(bytes.n) : gib_text(static_cast<double>(bytes.n));
}

/// Host memory beside the GPU is the same on every card, so it has one column.
const CardPlan* with_host(const PlanReport& report) {
  for (const CardPlan& plan : report.plans) {
    if (plan.card.device == Device::kCuda) return &plan;
  }
  return nullptr;
}

Table memory_table(const PlanReport& report, Unit unit) {
  const CardPlan* const host = with_host(report);
  std::vector<std::string> headings = card_names(report);
  if (host != nullptr) headings.emplace_back("host");
  Table table(unit == Unit::kBytes ? "bytes per rank" : "GiB per rank", headings);
  const auto add = [&](const std::string& label, const std::vector<Bytes>& values,
                       std::optional<Bytes> on_host) {
    std::vector<std::string> cells;
    for (const Bytes value : values) cells.push_back(amount(value, unit));
    if (on_host) cells.push_back(amount(*on_host, unit));
    table.add(label, std::move(cells));
  };
  const std::vector<MemoryRow> names = report.plans.front().memory.rows();
  Bytes host_total;
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::vector<Bytes> values;
    for (const CardPlan& plan : report.plans) values.push_back(plan.memory.rows()[i].device);
    std::optional<Bytes> on_host;
    if (host != nullptr) on_host = host->memory.rows()[i].host;
    host_total.n += on_host.value_or(Bytes{}).n;
    add(names[i].name, values, on_host);
  }
  std::vector<Bytes> totals, reserved;
  for (const CardPlan& plan : report.plans) {
    totals.push_back(plan.memory.total());
    reserved.push_back(plan.card.device == Device::kCuda ? kReservedOnGpu : Bytes{});
  }
  add("planned", totals, host == nullptr ? std::nullopt : std::optional(host_total));
  add("context, libraries", reserved, std::nullopt);
  add_row(table, report, "the card has", [&](const CardPlan& plan) {
    return plan.card.memory ? amount(*plan.card.memory, unit) : kNone;
  });
  return table;
}

std::string reshard_name(parallel::ReshardAfter choice) {
  switch (choice) {
    case parallel::ReshardAfter::kForward:
      return "forward";
    case parallel::ReshardAfter::kMicroBatch:
      return "micro_batch";
    case parallel::ReshardAfter::kStep:
      return "step";
  }
  return "";
}

std::string seconds_cell(const CardPlan& plan, double StepTime::* part) {
  return plan.time ? fmt::format("{:.1f}", 1e3 * ((*plan.time).*part)) : kNone;
}

std::string duration_text(double seconds) {
  return seconds < 3600 ? fmt::format("{:.0f} s", seconds)
                        : fmt::format("{:.1f} h", seconds / 3600);
}

double price_of(const PlanReport& report, std::size_t card) {
  const std::vector<double>& prices = report.prices.per_gpu_hour;
  return prices.size() == 1 ? prices[0] : prices[card];
}

void add_ceilings(Table& table, const PlanReport& report) {
  const auto ceiling = [&](const std::string& label, std::optional<double> Ceilings::* field) {
    add_row(table, report, label, [&](const CardPlan& plan) {
      const std::optional<double>& value = plan.card.ceilings.*field;
      return value ? fmt::format("{:.4g}", *value) : kNone;
    });
  };
  add_row(table, report, "ceilings",
          [](const CardPlan& plan) { return std::string(source_text(plan.card.source)); });
  ceiling("  copy, GB/s", &Ceilings::copy_gb);
  ceiling("  matrix product, TFLOP/s", &Ceilings::gemm_tflop);
  ceiling("  attention forward, TFLOP/s", &Ceilings::attention_forward_tflop);
  ceiling("  attention backward, TFLOP/s", &Ceilings::attention_backward_tflop);
  ceiling("  all-gather, GB/s", &Ceilings::all_gather_gb);
  ceiling("  reduce-scatter, GB/s", &Ceilings::reduce_scatter_gb);
  if (report.planner.cluster().nodes() == 1) return;
  add_row(table, report, "  network of a GPU, GB/s", [](const CardPlan& plan) {
    return plan.card.network_gb ? fmt::format("{:.4g}", *plan.card.network_gb) : kNone;
  });
}

void add_step(Table& table, const PlanReport& report) {
  const auto part = [&](const std::string& label, double StepTime::* field) {
    add_row(table, report, label, [&](const CardPlan& plan) { return seconds_cell(plan, field); });
  };
  add_row(table, report, "step, ms", [](const CardPlan& plan) {
    return plan.time ? fmt::format("{:.1f}", 1e3 * plan.time->total()) : kNone;
  });
  part("  matrix products", &StepTime::products);
  part("  attention", &StepTime::attention);
  part("  bytes moved", &StepTime::moved);
  part("  transfers not hidden", &StepTime::exposed);
  part("gathers, hidden or not, ms", &StepTime::gather);
  part("reductions, hidden or not, ms", &StepTime::reduce);
}

void add_rates(Table& table, const PlanReport& report) {
  const auto ranks = static_cast<double>(report.planner.cluster().ranks);
  const bool bf16 = report.planner.parsed().config.train.precision == DType::kBFloat16;
  const auto tokens = [](const CardPlan& plan) {
    return static_cast<double>(plan.work.tokens) / plan.time->total();
  };
  add_row(table, report, "tokens/s", [&](const CardPlan& plan) {
    return plan.time ? fmt::format("{:.0f}", tokens(plan)) : kNone;
  });
  add_row(table, report, "tokens/s/GPU", [&](const CardPlan& plan) {
    return plan.time ? fmt::format("{:.0f}", tokens(plan) / ranks) : kNone;
  });
  add_row(table, report, "model FLOPs of peak, %", [&](const CardPlan& plan) {
    if (!plan.time || !plan.card.peak_tflop || !bf16) return std::string(kNone);
    return fmt::format("{:.1f}", 1e-10 * static_cast<double>(plan.work.model_flops) /
                                     plan.time->total() / ranks / *plan.card.peak_tflop);
  });
}

void add_cost(Table& table, const PlanReport& report) {
  const std::int64_t steps = report.planner.parsed().config.train.steps;
  const auto ranks = static_cast<double>(report.planner.cluster().ranks);
  const auto seconds = [&](const CardPlan& plan) {
    return static_cast<double>(steps) * plan.time->total();
  };
  add_row(table, report, fmt::format("{} steps", steps),
          [&](const CardPlan& plan) { return plan.time ? duration_text(seconds(plan)) : kNone; });
  if (report.prices.per_gpu_hour.empty()) return;
  std::size_t card = 0;
  add_row(table, report, "price", [&](const CardPlan& plan) {
    const double price = price_of(report, card++);
    return plan.time ? fmt::format("{:.2f}", seconds(plan) / 3600 * ranks * price) : kNone;
  });
}

}  // namespace

std::string report_run(const PlanReport& report) {
  const Planner& planner = report.planner;
  const Config& c = planner.parsed().config;
  const Cluster& cluster = planner.cluster();
  const StepWork& work = report.plans.front().work;
  const bool gpus = with_host(report) != nullptr;
  const std::int64_t again = recomputed_layers(c);
  std::string text =
      fmt::format("cluster          {}, {} in each; mesh: replicate {} x shard {}\n",
                  counted(cluster.nodes(), "node", "nodes"),
                  counted(cluster.per_node, gpus ? "GPU" : "rank", gpus ? "GPUs" : "ranks"),
                  c.mesh.replicate, c.mesh.shard);
  text += fmt::format("model            {} parameters in {} layers; sequence {}; {}\n",
                      planner.num_parameters(), c.model.layers, c.data.sequence,
                      dtype_name(c.train.precision));
  text += fmt::format(
      "batch            {} = micro_batch {} x accumulation {} x {} data ranks; {} tokens a step, "
      "{} in {} steps\n",
      c.train.batch, c.train.micro_batch, c.train.accumulation, c.mesh.replicate * c.mesh.shard,
      work.tokens, checked_product(work.tokens, c.train.steps), c.train.steps);
  std::string twice = again == 0 ? "" : fmt::format("{} of {} layers, ", again, c.model.layers);
  if (work.logits == LogitsFormed::kTwice) twice += "logits and ";
  twice += "scores are formed twice";
  text += fmt::format("FLOPs a token    {} of the model, {} of the hardware ({})\n",
                      work.token.model, work.token.hardware(), twice);
  text += fmt::format("FLOPs a step     {} of the model, {} of the hardware\n", work.model_flops,
                      work.hardware_flops);
  // fp32 masters and two moments of every parameter.
  text += fmt::format("checkpoint       {}\n",
                      both(Bytes{checked_product(12, planner.num_parameters())}));
  return text;
}

std::string report_memory(const PlanReport& report) {
  std::string text = memory_table(report, Unit::kBytes).text() + "\n" +
                     memory_table(report, Unit::kGib).text() + "\n";
  Table table("does it fit", card_names(report));
  add_row(table, report, "fits", [](const CardPlan& plan) {
    return std::string(!plan.budget ? "not checked" : plan.fits() ? "yes" : "NO");
  });
  add_row(table, report, "left, GiB", [](const CardPlan& plan) {
    return plan.budget ? gib_text(static_cast<double>(plan.budget->n - plan.memory.total().n))
                       : kNone;
  });
  add_row(table, report, "zero.reshard_after",
          [](const CardPlan& plan) { return reshard_name(plan.zero.reshard_after); });
  add_row(table, report, "zero.reduce_after", [](const CardPlan& plan) {
    const bool step = plan.zero.reduce_after == parallel::ReduceAfter::kStep;
    const bool ordered = plan.zero.mode == parallel::ReduceMode::kOrdered;
    return std::string(ordered ? "slot" : step ? "step" : "micro_batch");
  });
  return text + table.text();
}

std::string report_traffic(const PlanReport& report) {
  Table table("traffic of a rank, a step", card_names(report));
  const auto bytes = [&](const std::string& label,
                         const std::function<Bytes(const StepWork&)>& of) {
    for (const Unit unit : {Unit::kBytes, Unit::kGib}) {
      add_row(table, report, label + (unit == Unit::kBytes ? ", bytes" : ", GiB"),
              [&](const CardPlan& plan) { return amount(of(plan.work), unit); });
    }
  };
  add_row(table, report, "gathers, of all units",
          [](const CardPlan& plan) { return std::to_string(plan.work.traffic.gathers); });
  bytes("  over the wire", [](const StepWork& w) { return w.traffic.gather_wire; });
  add_row(table, report, "reductions, of all units",
          [](const CardPlan& plan) { return std::to_string(plan.work.traffic.reductions); });
  bytes("  over the wire", [](const StepWork& w) { return w.traffic.reduce_wire; });
  const auto offloads = [](const CardPlan& plan) { return plan.zero.offload.any(); };
  if (std::any_of(report.plans.begin(), report.plans.end(), offloads)) {
    bytes("offload, device to host", [](const StepWork& w) { return w.traffic.device_to_host; });
    bytes("offload, host to device", [](const StepWork& w) { return w.traffic.host_to_device; });
  }
  const auto on_disk = [](const CardPlan& plan) { return !plan.zero.offload.nvme.empty(); };
  if (std::any_of(report.plans.begin(), report.plans.end(), on_disk)) {
    bytes("offload, from the disk and back", [](const StepWork& w) { return w.traffic.nvme; });
  }
  if (report.planner.cluster().nodes() > 1) {
    bytes("  through its network card",
          [](const StepWork& w) { return Bytes{w.gather_network.n + w.reduce_network.n}; });
  }
  return table.text();
}

std::string report_time(const PlanReport& report) {
  Table table("predicted, at the ceilings", card_names(report));
  add_ceilings(table, report);
  add_step(table, report);
  add_rates(table, report);
  add_cost(table, report);
  std::string text = table.text();
  for (const CardPlan& plan : report.plans) {
    if (!plan.time) {
      text += fmt::format("{}: no prediction: {}\n", plan.card.name, plan.why_no_time);
    }
  }
  return text;
}

std::string report_recompute(const std::vector<Variant>& variants) {
  if (variants.empty()) return "";
  const CardPlan& base = variants.front().plan;
  Table table("recompute, on " + base.card.name,
              {"activations and scratch, bytes", "GiB", "saved, GiB", "saved, %",
               "hardware FLOPs, %", "step, %"});
  const auto bytes = [](const CardPlan& plan) {
    return plan.memory.model.activations.n + plan.memory.model.scratch.n;
  };
  const auto more = [](double value, double reference) {
    return fmt::format("{:+.1f}", 100 * (value / reference - 1));
  };
  for (const Variant& variant : variants) {
    const CardPlan& plan = variant.plan;
    const auto saved = static_cast<double>(bytes(base) - bytes(plan));
    table.add(
        variant.change,
        {std::to_string(bytes(plan)), gib_text(static_cast<double>(bytes(plan))), gib_text(saved),
         fmt::format("{:.1f}", 100 * saved / static_cast<double>(bytes(base))),
         more(static_cast<double>(plan.work.hardware_flops),
              static_cast<double>(base.work.hardware_flops)),
         plan.time && base.time ? more(plan.time->total(), base.time->total()) : kNone});
  }
  return table.text();
}

std::string report_offload(const PlanReport& report, const std::vector<Variant>& variants) {
  const Card& card = variants.front().plan.card;
  if (card.device != Device::kCuda) return "";
  Table table("GiB, on " + card.name,
              {"states", "activations", "buffers", "planned", "saved, %", "host"});
  const auto base = static_cast<double>(variants.front().plan.memory.total().n);
  for (const Variant& variant : variants) {
    const MemoryPlan& memory = variant.plan.memory;
    const auto total = static_cast<double>(memory.total().n);
    const std::int64_t states = memory.zero.model_state().n + memory.zero.replicated.n;
    const std::int64_t activations = memory.model.activations.n;
    const auto gib = [](std::int64_t bytes) { return gib_text(static_cast<double>(bytes)); };
    table.add(
        variant.change,
        {gib(states), gib(activations), gib(memory.total().n - states - activations),
         gib_text(total), fmt::format("{:.1f}", 100 * (1 - total / base)), gib(memory.host().n)});
  }
  std::string text = table.text();
  if (report.planner.parsed().config.model.preset == "recipe-32l") {
    text += "the recipe's document says, of 8 GPUs: 42 GB without offload, 23 GB with it\n";
  }
  return text;
}

std::string report_ways(const CardPlan& plan, const std::vector<Variant>& ways) {
  std::string text = fmt::format("{}: {} planned, {} may be\n", plan.card.name,
                                 both(plan.memory.total()), both(plan.budget.value_or(Bytes{})));
  if (ways.empty()) text += "  nothing that was tried makes it fit\n";
  for (const Variant& way : ways) {
    text += fmt::format("  fits with {}: {}{}\n", way.change, both(way.plan.memory.total()),
                        way.plan.time && plan.time
                            ? fmt::format(", step {:+.1f} %",
                                          100 * (way.plan.time->total() / plan.time->total() - 1))
                            : "");
  }
  return text;
}

}  // namespace k25::trainer
