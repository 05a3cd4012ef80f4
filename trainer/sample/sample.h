#pragma once
// Text from a checkpoint, one token at a time.

#include <cstdint>
#include <string>

#include "data/tokenizer/tokenizer.h"
#include "parallel/zero/zero_store.h"
#include "trainer/model/model.h"
#include "trainer/train/runtime.h"

namespace k25::trainer {

struct SampleOptions {
  std::string prompt;
  std::int64_t tokens = 100;
  double temperature = 0.8;  ///< 0: the most probable token
  std::int64_t top_k = 40;   ///< 0: all
  std::uint64_t seed = 7;
};

/// Draw i is Philox(seed, 0, "sample").uniform(i); a token is taken from the softmax of logits /
/// temperature over the top_k largest. Ties go to the lower id.
std::int32_t pick_token(const std::vector<float>& logits, const SampleOptions& options,
                        std::int64_t draw);

/// Collective. The prompt's tokens, then new ones until `tokens` or the end of the document. A
/// context longer than the model's window keeps its last tokens. `model` has batch 1. Same text on
/// all ranks.
std::string sample_text(Runtime& runtime, Model& model, parallel::ZeroStore& store,
                        const data::Tokenizer& tokenizer, const SampleOptions& options);

}  // namespace k25::trainer
