#pragma once
// What a resumed run's configuration and machine have that the checkpoint's did not.

#include <map>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/config/config.h"
#include "trainer/config/parse.h"
#include "trainer/train/adopt.h"

namespace k25::trainer {

/// A resolved config by key path: {"optim.lr", "0.01"}.
std::map<std::string, std::string> keys_of(const std::string& resolved);

/// Keys that change what the weights compute without changing their shapes (model.rope_theta,
/// model.norm_eps, how a width is cut into heads, the pattern) must be those of the checkpoint:
/// otherwise kCheckpoint naming each key with both values. Shapes are load_checkpoint's matter.
void require_same_function(const CheckpointInfo& saved, const ModelConfig& model);

/// Of weights that start a new run: how a width is cut into heads and the pattern must be the
/// checkpoint's, otherwise kCheckpoint naming each key with both values. Other constants
/// (model.rope_theta, model.norm_eps) are a choice: one line "differs from the checkpoint: ...".
void require_same_layout(const CheckpointInfo& saved, const ModelConfig& model,
                         std::vector<std::string>& warnings);

/// Appends one line "differs from the checkpoint: key old -> new, key old -> new" about everything
/// else that moves the numbers of the coming steps: batch, precision, optimiser, schedule,
/// freezing, numeric policy, slots, mixture, and the machine's fingerprint. Nothing when all is as
/// it was. Keys that move no number (paths, logs, checkpoints, memory and traffic) are not
/// mentioned.
void warn_of_changes(const CheckpointInfo& saved, const ParsedConfig& now, const DataIdentity& data,
                     const std::string& fingerprint, std::vector<std::string>& warnings);

}  // namespace k25::trainer
