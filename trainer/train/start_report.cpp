#include "trainer/train/start_report.h"

#include <fmt/format.h>

#include <utility>

namespace k25::trainer {

std::vector<std::string> start_report(Runtime& runtime, const Config& config, const Model& model,
                                      const data::Corpus& corpus, const data::Split& split,
                                      const MemoryPlan& memory, const parallel::ZeroStore& store) {
  std::vector<std::string> lines = {
      fmt::format("model: {} parameters in {} layers; {} {}; batch {} = micro_batch {} x "
                  "accumulation {} x {} data ranks; precision {}; reduce.slots {}",
                  model.num_parameters(), config.model.layers, runtime.world().size(),
                  runtime.world().size() == 1 ? "rank" : "ranks", config.train.batch,
                  config.train.micro_batch, config.train.accumulation, runtime.mesh().data_ranks(),
                  dtype_name(config.train.precision), config.reduce.slots),
      fmt::format("data: {} tokens, {} training and {} validation documents ({} moved as near-"
                  "duplicates); memory planned {} bytes a rank, allocated {}",
                  corpus.info().tokens, split.train.size(), split.validation.size(), split.moved,
                  memory.total().n, runtime.allocator().live().n),
      runtime.fingerprint()};
  for (std::string& line : runtime.placement_lines()) lines.push_back(std::move(line));
  if (const std::string how = store.nvme_text(); !how.empty()) {
    lines.push_back(fmt::format("offload.nvme: {}: {} bytes of moments a rank, {}",
                                config.offload.nvme, memory.zero.nvme.n, how));
  }
  if (split.validation.empty()) lines.emplace_back("warning: no validation data (data.validation)");
  return lines;
}

}  // namespace k25::trainer
