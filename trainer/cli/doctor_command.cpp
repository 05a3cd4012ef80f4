#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "data/io/atomic_file.h"
#include "parallel/comm/agree.h"
#include "trainer/cli/commands.h"
#include "trainer/doctor/doctor.h"
#include "trainer/doctor/measure.h"

namespace k25::trainer {
namespace {

using Json = nlohmann::ordered_json;

struct DoctorArguments {
  std::string measure, run_dir = ".";
  bool json = false;
};

CeilingsFile measure(parallel::World& world, const std::string& path) {
  Config config;
  config.mesh.shard = world.size();
  config.run.cpu_threads = fair_threads(world);
  std::vector<std::string> warnings;
  Runtime runtime(world, config, warnings);
  const CeilingsFile file = measure_ceilings(runtime);
  parallel::from_rank0(world.comm(), "ceilings", [&] {
    data::write_file_atomically(path, ceilings_json(file), ErrorKind::kUsage,
                                [&] { require_place_for_ceilings(path); });
    return std::string();
  });
  return file;
}

std::string summary(const std::vector<Finding>& findings) {
  int warnings = 0, notes = 0;
  for (const Finding& f : findings) {
    warnings += f.severity == Severity::kWarning ? 1 : 0;
    notes += f.severity == Severity::kNote ? 1 : 0;
  }
  return fmt::format("{} warnings, {} notes", warnings, notes);
}

void run_doctor(const DoctorArguments& arguments, const CommandContext& context) {
  parallel::World& world = *context.world;
  if (!arguments.measure.empty()) {
    parallel::from_rank0(world.comm(), "ceilings", [&] {
      require_place_for_ceilings(arguments.measure);
      return std::string();
    });
  }
  const std::vector<Finding> findings = examine(world, arguments.run_dir);
  Json json = {{"format", "k25 doctor 1"}, {"ranks", world.size()}};
  json["findings"] = Json::array();
  for (const Finding& f : findings) json["findings"].push_back(to_json(f));
  std::string ceilings;
  if (!arguments.measure.empty()) ceilings = ceilings_json(measure(world, arguments.measure));
  if (world.rank() != 0) return;
  if (arguments.json) {
    json["ceilings"] = ceilings.empty() ? Json() : Json::parse(ceilings);
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("{}{}\n", findings_text(findings), summary(findings));
  if (!ceilings.empty()) {
    fmt::print("{}written to {}; read it with k25 plan --ceilings\n", ceilings, arguments.measure);
  }
}

}  // namespace

Command add_doctor(CLI::App& root) {
  auto arguments = std::make_shared<DoctorArguments>();
  CLI::App* app = root.add_subcommand(
      "doctor", "what this machine offers, what follows from it and what mends it");
  app->add_option("--measure", arguments->measure,
                  "also measure ceilings, into this file for k25 plan --ceilings");
  app->add_option("--run-dir", arguments->run_dir, "where runs are to lie")->capture_default_str();
  app->add_flag("--json", arguments->json, "print one JSON object");
  return {app, Needs::kWorld,
          [arguments](const CommandContext& context) { run_doctor(*arguments, context); }};
}

}  // namespace k25::trainer
