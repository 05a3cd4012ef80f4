#pragma once
// Everything besides tensors that makes a step a pure function: counters, policy, data position.

#include <cstdint>
#include <string>

#include "data/sampler/sampler.h"
#include "optim/decide.h"

namespace k25::trainer {

struct TrainState {
  std::int64_t step = 0;          ///< steps done (skipped and empty ones included)
  std::int64_t label_tokens = 0;  ///< trained on in all (skipped steps not counted)
  optim::PolicyState policy;
  data::MixtureState mixture;  ///< position in samples
  std::int64_t best_step = -1;
  double best_loss = 0.0;  ///< validation loss at best_step
  std::uint64_t seed = 0;
  std::string corpus_digest;
  std::string
      order_digest;  ///< SHA-256 of what else fixes the sample order: sequence, training documents
  std::string tokenizer_digest;       ///< SHA-256 of tokenizer.model; "" in older checkpoints
  std::string config_digest;          ///< SHA-256 of the resolved config
  std::string init_digest;            ///< of what train.init_from named; "" when fresh
  std::int64_t slots = 0, batch = 0;  ///< reduce.slots and train.batch as resolved
  std::string fingerprint;            ///< CPU ISA, threads, library versions
  friend bool operator==(const TrainState&, const TrainState&) = default;
};

std::string to_json(const TrainState& state);
/// Throws kCheckpoint naming `file`, the key and the value: a counter out of its range, too.
TrainState state_from_json(const std::string& text, const std::string& file);

}  // namespace k25::trainer
