#include "trainer/sample/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/loader/batch.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/philox.h"
#include "trainer/train/batch_upload.h"
#include "trainer/train/step.h"

namespace k25::trainer {
namespace {

// One document of `count` tokens at the start of the window; the rest is padding that nothing looks
// at.
void fill_window(const std::vector<std::int32_t>& tokens, std::int32_t padding,
                 data::Batch& batch) {
  const auto window = static_cast<std::size_t>(batch.tokens_per_sequence);
  const std::size_t count = std::min(tokens.size(), window);
  const std::size_t first = tokens.size() - count;
  for (std::size_t i = 0; i < window; ++i) {
    const bool real = i < count;
    batch.tokens[i] = real ? tokens[first + i] : padding;
    batch.labels[i] = -1;
    batch.position[i] = static_cast<std::int32_t>(real ? i : i - count);
    batch.doc_begin[i] = static_cast<std::int32_t>(real ? 0 : count);
    batch.doc_end[i] = static_cast<std::int32_t>(real ? count : window);
  }
}

}  // namespace

std::int32_t pick_token(const std::vector<float>& logits, const SampleOptions& options,
                        std::int64_t draw) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto larger_logit = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::size_t k = options.top_k == 0
                      ? order.size()
                      : std::min(order.size(), static_cast<std::size_t>(options.top_k));
  if (options.temperature == 0.0) k = 1;
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                    larger_logit);
  if (k == 1) return order[0];
  std::vector<double> cumulative(k);
  const auto top = static_cast<double>(logits[static_cast<std::size_t>(order[0])]);
  double sum = 0.0;
  for (std::size_t i = 0; i < k; ++i) {
    const auto z = static_cast<double>(logits[static_cast<std::size_t>(order[i])]);
    sum += std::exp((z - top) / options.temperature);
    cumulative[i] = sum;
  }
  const double u =
      sum * static_cast<double>(
                Philox(options.seed, 0, "sample").uniform(static_cast<std::uint64_t>(draw)));
  const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), u) - cumulative.begin();
  return order[std::min(static_cast<std::size_t>(at), k - 1)];
}

std::string sample_text(Runtime& runtime, Model& model, parallel::ZeroStore& store,
                        const data::Tokenizer& tokenizer, const SampleOptions& options) {
  data::Batch batch;
  batch.resize(1, model.shape().tokens);
  BatchUpload upload(model, 1, runtime.host_allocator(), runtime.allocator());
  std::vector<std::int32_t> tokens = tokenizer.encode(options.prompt);
  if (tokens.empty()) tokens.push_back(tokenizer.end_of_document());
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    fill_window(tokens, tokenizer.end_of_document(), batch);
    model.forward(runtime.context(), store, upload.upload(runtime.context(), runtime.mesh(), batch),
                  Model::Purpose::kEvaluate);
    const std::int64_t last =
        std::min<std::int64_t>(static_cast<std::int64_t>(tokens.size()), model.shape().tokens) - 1;
    std::vector<float> logits = model.logits(runtime.context(), store, last);
    // model.vocab may be larger; what lies beyond has no piece and was no label.
    logits.resize(std::min(logits.size(), static_cast<std::size_t>(tokenizer.vocab())));
    const std::int32_t next = pick_token(logits, options, i);
    if (next == tokenizer.end_of_document()) break;
    tokens.push_back(next);
  }
  return data::replace_invalid_utf8(tokenizer.decode(tokens));
}

}  // namespace k25::trainer
