#include "data/loader/loader.h"

#include <algorithm>

#include "data/loader/window.h"
#include "data/sampler/document_stream.h"
#include "fmt/format.h"
#include "kernels/core/check.h"

namespace k25::data {

void load_samples(const Corpus& corpus, const Sampler& sampler, std::span<const SampleRef> samples,
                  Batch& batch) {
  K25_CHECK(static_cast<std::int64_t>(samples.size()) <= batch.sequences,
            fmt::format("{} samples for a batch of {} sequences", samples.size(), batch.sequences));
  clear_batch(corpus, batch);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    fill_row(corpus, sampler.pieces(samples[i]), static_cast<std::int64_t>(i), batch);
    batch.sample[i] = samples[i].number;
    batch.domain[i] = samples[i].domain;
  }
}

ValidationSet::ValidationSet(const Corpus& corpus, std::vector<std::int64_t> documents,
                             std::int64_t sequence)
    : corpus_(corpus),
      documents_(sorted_documents(corpus, std::move(documents))),
      sequence_(sequence),
      starts_(stream_starts(corpus, documents_)) {
  if (sequence < 1) {
    fail(ErrorKind::kUsage, fmt::format("a sequence of {} tokens, expected at least 1", sequence));
  }
}

std::int64_t ValidationSet::windows() const {
  return starts_.back() / sequence_ + (starts_.back() % sequence_ != 0 ? 1 : 0);
}

void ValidationSet::load(std::int64_t first, Batch& batch) const {
  K25_CHECK(first >= 0, fmt::format("validation window {}", first));
  clear_batch(corpus_, batch);
  const std::int64_t rows = std::clamp<std::int64_t>(windows() - first, 0, batch.sequences);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t begin = (first + row) * sequence_;
    fill_row(corpus_, stream_pieces(corpus_, documents_, starts_, begin, begin + sequence_), row,
             batch);
    batch.sample[static_cast<std::size_t>(row)] = first + row;
    batch.domain[static_cast<std::size_t>(row)] = domain(first + row);
  }
}

std::int32_t ValidationSet::domain(std::int64_t window) const {
  K25_CHECK(window >= 0 && window < windows(),
            fmt::format("validation window {} of {}", window, windows()));
  const std::int64_t begin = window * sequence_;
  const auto piece = stream_pieces(corpus_, documents_, starts_, begin, begin + 1).front();
  return corpus_.documents()[static_cast<std::size_t>(piece.document)].domain;
}

}  // namespace k25::data
