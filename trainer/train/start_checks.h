#pragma once
// What a run is told before its first step: settings that make no sense with this model or corpus.

#include <filesystem>
#include <string>
#include <vector>

#include "data/sampler/sampler.h"
#include "trainer/config/effects.h"
#include "trainer/model/model.h"

namespace k25::trainer {

/// A warning when optim.freeze leaves no parameter to train: the loop runs, and changes nothing.
void warn_of_frozen_model(const Model& model, const ParsedConfig& parsed,
                          std::vector<std::string>& warnings);

/// A warning when state is offloaded from a device whose memory is the host's.
void warn_of_offload(const Config& config, Device device, std::vector<std::string>& warnings);

/// Every rank writes its own shard, so all must see rank 0's directory: its lock, which says
/// `owner`, tells. Throws kCheckpoint.
void require_shared(const std::string& run_dir, const std::string& owner);

/// Of a start that has reached train.steps already: when `checkpoint` is not in the run directory,
/// "nothing to do" would leave that one without what was asked for. Throws kCheckpoint.
void require_own_checkpoint(const Config& config, const std::filesystem::path& checkpoint,
                            std::int64_t step);

DataFacts describe_data(const data::Corpus& corpus, const data::Split& split);

}  // namespace k25::trainer
