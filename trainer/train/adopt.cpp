#include "trainer/train/adopt.h"

#include <fmt/format.h>

#include "data/io/atomic_file.h"
#include "data/io/block_digest.h"
#include "parallel/comm/agree.h"

namespace k25::trainer {
namespace {

// "" when the saved position still means the same samples.
std::string what_changed(const TrainState& saved, const DataIdentity& now,
                         const std::string& checkpoint) {
  if (saved.corpus_digest != now.corpus_digest) {
    return fmt::format("{}: the checkpoint was trained on corpus {}, data.train now has {}",
                       checkpoint, saved.corpus_digest, now.corpus_digest);
  }
  if (saved.order_digest != now.order_digest) {
    return fmt::format(
        "{}: data.sequence or the training side of data.validation changed since the checkpoint "
        "(sample order {}, now {})",
        checkpoint, saved.order_digest, now.order_digest);
  }
  return "";
}

}  // namespace

DataIdentity identify_data(const Config& config, const data::Corpus& corpus,
                           const data::Split& split, const data::Sampler& sampler) {
  std::string order = "sequence " + std::to_string(config.data.sequence);
  for (const std::int64_t document : split.train) order += " " + std::to_string(document);
  return {.corpus_digest = corpus.info().digest,
          .order_digest = data::sha256_hex(order),
          .initial = sampler.initial_state(),
          .tokenizer_digest = tokenizer_digest(corpus.tokenizer_path())};
}

std::string tokenizer_digest(const std::filesystem::path& model) {
  return data::sha256_hex(data::read_file(model, ErrorKind::kData));
}

TrainState adopt_state(const TrainState& saved, const Config& config, const DataIdentity& now,
                       const std::string& checkpoint, std::vector<std::string>& warnings) {
  if (saved.seed != config.run.seed) {
    throw parallel::AgreedError(
        ErrorKind::kUsage,
        fmt::format("run.seed is {}, the checkpoint {} was trained with {}; a resumed run keeps "
                    "its seed (start a new run.dir, or use train.init_from)",
                    config.run.seed, checkpoint, saved.seed),
        0);
  }
  TrainState state = saved;
  const std::string changed = what_changed(saved, now, checkpoint);
  if (!changed.empty()) {
    if (!config.train.allow_data_change) {
      throw parallel::AgreedError(
          ErrorKind::kData,
          changed + "; set train.allow_data_change: true to start a new epoch on the new data", 0);
    }
    warnings.push_back(changed + ": a new epoch starts on the new data");
    state.mixture = now.initial;
    state.mixture.next_sample = saved.mixture.next_sample;
    state.best_step = -1;  // its loss was measured on other data
  } else {
    state.mixture.weights = now.initial.weights;
  }
  return state;
}

}  // namespace k25::trainer
