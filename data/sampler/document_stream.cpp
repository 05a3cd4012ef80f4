#include "data/sampler/document_stream.h"

#include <algorithm>

#include "fmt/format.h"
#include "kernels/core/check.h"

namespace k25::data {

namespace {

const Document& document_at(const Corpus& corpus, std::int64_t index) {
  return corpus.documents()[static_cast<std::size_t>(index)];
}

}  // namespace

std::vector<std::int64_t> sorted_documents(const Corpus& corpus,
                                           std::vector<std::int64_t> documents) {
  std::sort(documents.begin(), documents.end());
  const auto count = static_cast<std::int64_t>(corpus.documents().size());
  const bool exist = documents.empty() || (documents.front() >= 0 && documents.back() < count);
  K25_CHECK(exist, fmt::format("a document index is outside the corpus of {}", count));
  K25_CHECK(std::adjacent_find(documents.begin(), documents.end()) == documents.end(),
            "a document is listed twice");
  return documents;
}

std::vector<std::int64_t> stream_starts(const Corpus& corpus,
                                        std::span<const std::int64_t> documents) {
  std::vector<std::int64_t> starts = {0};
  starts.reserve(documents.size() + 1);
  for (const std::int64_t index : documents) {
    const Document& d = document_at(corpus, index);
    starts.push_back(starts.back() + d.token_end - d.token_begin);
  }
  return starts;
}

std::vector<Sampler::Piece> stream_pieces(const Corpus& corpus,
                                          std::span<const std::int64_t> documents,
                                          std::span<const std::int64_t> starts, std::int64_t begin,
                                          std::int64_t end) {
  std::vector<Sampler::Piece> pieces;
  end = std::min(end, starts.back());
  auto i = static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), begin) -
                                    starts.begin()) -
           1;
  for (; begin < end; ++i) {
    const std::int64_t stop = std::min(end, starts[i + 1]);
    const std::int64_t shift = document_at(corpus, documents[i]).token_begin - starts[i];
    pieces.push_back({documents[i], begin + shift, stop + shift});
    begin = stop;
  }
  return pieces;
}

}  // namespace k25::data
