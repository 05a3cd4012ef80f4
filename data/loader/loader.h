#pragma once
// Fills batches from the corpus: training windows by sample, validation windows in document order.

#include <cstdint>
#include <span>
#include <vector>

#include "data/corpus/corpus.h"
#include "data/loader/batch.h"
#include "data/sampler/sampler.h"

namespace k25::data {

/// Row i of `batch` = samples[i]; rows beyond stay empty (labels -1).
void load_samples(const Corpus& corpus, const Sampler& sampler, std::span<const SampleRef> samples,
                  Batch& batch);

/// Validation windows: documents in corpus order, laid end to end and cut into `sequence` tokens;
/// the last one padded. Every target is counted exactly once.
class ValidationSet {
 public:
  ValidationSet(const Corpus& corpus, std::vector<std::int64_t> documents, std::int64_t sequence);
  std::int64_t windows() const;
  /// Rows [first, first + batch.sequences); rows past the end stay empty.
  void load(std::int64_t first, Batch& batch) const;
  /// Domain of window w (of its first token).
  std::int32_t domain(std::int64_t window) const;

 private:
  const Corpus& corpus_;
  std::vector<std::int64_t> documents_;
  std::int64_t sequence_;
  std::vector<std::int64_t> starts_;  ///< prefix sums of document lengths
};

}  // namespace k25::data
