#pragma once
// Validation: sum of nll over sum of target tokens, whatever the rank count and batch cut.

#include <cstdint>
#include <optional>
#include <vector>

#include "data/loader/loader.h"
#include "parallel/zero/zero_store.h"
#include "trainer/config/config.h"
#include "trainer/log/metrics.h"
#include "trainer/model/model.h"
#include "trainer/train/batch_upload.h"
#include "trainer/train/runtime.h"
#include "trainer/train/sequence_losses.h"

namespace k25::trainer {

class Evaluator {
 public:
  Evaluator(Runtime& runtime, const Config& config, Model& model, parallel::ZeroStore& store,
            const data::Corpus& corpus, const data::ValidationSet& validation);

  static Footprint plan(const RunShape& shape);

  /// Collective. The first eval.batches micro-batches of windows (0: all); window w goes to data
  /// rank (w div micro_batch) mod W, ranks without windows run empty batches. No target: loss is
  /// absent.
  EvalRecord run(std::int64_t step);

 private:
  Runtime& runtime_;
  const Config& config_;
  Model& model_;
  parallel::ZeroStore& store_;
  const data::Corpus& corpus_;
  const data::ValidationSet& validation_;
  data::Batch batch_;
  BatchUpload upload_;
  SequenceLosses losses_;
};

/// Entropy of the validation targets' own unigram distribution, and the cross-entropy of the
/// training unigram (add-one smoothed over the vocabulary) on them, in nats: what a model must
/// beat.
struct UnigramBaseline {
  double entropy = 0.0;
  std::optional<double> cross_entropy;  ///< absent without training documents
  std::int64_t tokens = 0;
};
UnigramBaseline unigram_baseline(const data::Corpus& corpus, const data::Split& split);

}  // namespace k25::trainer
