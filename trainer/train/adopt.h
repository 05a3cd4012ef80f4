#pragma once
// Going on from a saved state: what must be the same as then, and what may have changed.

#include <filesystem>
#include <string>
#include <vector>

#include "data/corpus/corpus.h"
#include "data/sampler/sampler.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/config/config.h"

namespace k25::trainer {

/// What a position in samples refers to.
struct DataIdentity {
  std::string corpus_digest;
  std::string order_digest;  ///< of the sequence length and the training documents
  data::MixtureState initial;
  std::string tokenizer_digest;
};
/// SHA-256 of a tokenizer.model, as a run records it. Throws kData.
std::string tokenizer_digest(const std::filesystem::path& model);
DataIdentity identify_data(const Config& config, const data::Corpus& corpus,
                           const data::Split& split, const data::Sampler& sampler);

/// Throws kData when the weights were trained with another tokenizer than `tokenizer` (a digest):
/// the rows of embedding and head would mean other pieces. An older checkpoint has no record of it.
void require_same_tokenizer(const CheckpointInfo& checkpoint, const std::string& tokenizer);

/// The state to go on with. The same on all ranks, so its errors are AgreedError: kUsage for
/// another seed, kData for other data, both digests named, unless train.allow_data_change: then the
/// samples start over and the best step is forgotten. Another tokenizer is never taken. Other
/// mixture weights hold from here (changes.h warns of them).
TrainState adopt_state(const CheckpointInfo& checkpoint, const Config& config,
                       const DataIdentity& now, std::vector<std::string>& warnings);

}  // namespace k25::trainer
