#include "trainer/train/adopt.h"

#include <fmt/format.h>

#include "data/io/atomic_file.h"
#include "data/io/block_digest.h"
#include "parallel/comm/agree.h"
#include "trainer/train/changes.h"

namespace k25::trainer {
namespace {

// "" when the saved position still means the same samples.
std::string what_changed(const CheckpointInfo& checkpoint, const Config& config,
                         const DataIdentity& now) {
  const TrainState& saved = checkpoint.state;
  const std::string folder = checkpoint.folder.string();
  if (saved.corpus_digest != now.corpus_digest) {
    return fmt::format("{}: the checkpoint was trained on corpus {}, data.train now has {}", folder,
                       saved.corpus_digest, now.corpus_digest);
  }
  if (saved.order_digest == now.order_digest) return "";
  const std::map<std::string, std::string> before = keys_of(checkpoint.config);
  const auto sequence = before.find("data.sequence");
  const std::string order =
      fmt::format("(sample order {}, now {})", saved.order_digest, now.order_digest);
  if (sequence != before.end() && sequence->second != std::to_string(config.data.sequence)) {
    return fmt::format("{}: data.sequence changed since the checkpoint: {} -> {} {}", folder,
                       sequence->second, config.data.sequence, order);
  }
  return fmt::format(
      "{}: data.validation changed since the checkpoint: it leaves other documents "
      "to train on {}",
      folder, order);
}

// "" when the weights' tokenizer is `now`, or nobody knows.
std::string other_tokenizer(const CheckpointInfo& checkpoint, const std::string& now) {
  const std::string& saved = checkpoint.state.tokenizer_digest;
  if (saved.empty() || saved == now) return "";
  return fmt::format(
      "the tokenizer of its corpus was {}, that of data.train is {}, so that token ids mean other "
      "text; prepare the corpus with the old one (k25 prepare ... --tokenizer FILE)",
      saved, now);
}

}  // namespace

void require_same_tokenizer(const CheckpointInfo& checkpoint, const std::string& tokenizer) {
  const std::string other = other_tokenizer(checkpoint, tokenizer);
  if (!other.empty()) fail(ErrorKind::kData, checkpoint.folder.string() + ": " + other);
}

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

TrainState adopt_state(const CheckpointInfo& checkpoint, const Config& config,
                       const DataIdentity& now, std::vector<std::string>& warnings) {
  const TrainState& saved = checkpoint.state;
  if (saved.seed != config.run.seed) {
    throw parallel::AgreedError(
        ErrorKind::kUsage,
        fmt::format("run.seed is {}, the checkpoint {} was trained with {}; a resumed run keeps "
                    "its seed (start a new run.dir, or use train.init_from)",
                    config.run.seed, checkpoint.folder.string(), saved.seed),
        0);
  }
  TrainState state = saved;
  const std::string changed = what_changed(checkpoint, config, now);
  const std::string tokenizer = other_tokenizer(checkpoint, now.tokenizer_digest);
  if (!changed.empty()) {
    if (!tokenizer.empty()) {
      throw parallel::AgreedError(ErrorKind::kData, changed + "; " + tokenizer, 0);
    }
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
