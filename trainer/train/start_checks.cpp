#include "trainer/train/start_checks.h"

#include <fmt/format.h>

#include "data/io/atomic_file.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"

namespace k25::trainer {

void warn_of_frozen_model(const Model& model, const ParsedConfig& parsed,
                          std::vector<std::string>& warnings) {
  for (const parallel::UnitSpec& unit : model.units()) {
    for (const parallel::ParameterSpec& parameter : unit.parameters) {
      if (!parameter.frozen) return;
    }
  }
  warnings.push_back("optim.freeze " + parsed.values.at("optim.freeze") +
                     ": training has no effect because every parameter is frozen (" +
                     parsed.origins.at("optim.freeze") + ")");
}

void warn_of_offload(const Config& config, Device device, std::vector<std::string>& warnings) {
  const bool offloads = config.offload.optimizer == parallel::Place::kHost ||
                        config.offload.params == parallel::Place::kHost;
  const bool on_disk =
      config.offload.optimizer == parallel::Place::kHost && !config.offload.nvme.empty();
  if (!offloads || on_disk || device != Device::kCpu) return;
  warnings.emplace_back(
      "offload: the model runs on the CPU, so state in host memory saves none; leave offload out");
}

void require_shared(const std::string& run_dir, const std::string& owner) {
  const std::filesystem::path lock = std::filesystem::absolute(run_dir) / "lock";
  std::string seen;
  try {
    seen = data::read_file(lock, ErrorKind::kCheckpoint);
  } catch (const Error& error) {
    seen = error.what();
  }
  if (seen == owner) return;
  fail(ErrorKind::kCheckpoint,
       fmt::format(
           "{} is not the file that rank 0 wrote ({}); run.dir must name one directory on a disk "
           "that all ranks share, best by an absolute path",
           lock.string(), seen.empty() ? "it is empty" : seen));
}

void require_own_checkpoint(const Config& config, const std::filesystem::path& checkpoint,
                            std::int64_t step) {
  with_file_errors([&] {
    if (is_step_of(config.run.dir, checkpoint)) return;
    fail(
        ErrorKind::kCheckpoint,
        fmt::format("train.steps: {} is reached already by {}, at step {}, so that nothing is left "
                    "to train in {}; raise train.steps above {}",
                    config.train.steps, checkpoint.string(), step, config.run.dir, step));
  });
}

DataFacts describe_data(const data::Corpus& corpus, const data::Split& split) {
  DataFacts facts{.tokens = corpus.info().tokens};
  std::vector<std::int64_t> training(corpus.info().domains.size(), 0);
  const auto document = [&](std::int64_t d) -> const data::Document& {
    return corpus.documents()[static_cast<std::size_t>(d)];
  };
  for (const std::int64_t d : split.train) ++training[static_cast<std::size_t>(document(d).domain)];
  for (const std::int64_t d : split.validation) {
    facts.validation_tokens += document(d).token_end - document(d).token_begin;
  }
  for (std::size_t d = 0; d < training.size(); ++d) {
    if (training[d] == 0) facts.domains_without_training.push_back(corpus.info().domains[d]);
  }
  return facts;
}

}  // namespace k25::trainer
