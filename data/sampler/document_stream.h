#pragma once
// Documents laid end to end. Internal to data/.

#include <cstdint>
#include <span>
#include <vector>

#include "data/corpus/corpus.h"
#include "data/sampler/sampler.h"

namespace k25::data {

/// Document indices in their order, checked: each exists, none twice.
std::vector<std::int64_t> sorted_documents(const Corpus& corpus,
                                           std::vector<std::int64_t> documents);

/// starts[i] = tokens before documents[i] in the stream; one more at the end: the total.
std::vector<std::int64_t> stream_starts(const Corpus& corpus,
                                        std::span<const std::int64_t> documents);

/// The pieces of documents that stream tokens [begin, end) lie in; the part past the stream's end
/// is left out.
std::vector<Sampler::Piece> stream_pieces(const Corpus& corpus,
                                          std::span<const std::int64_t> documents,
                                          std::span<const std::int64_t> starts, std::int64_t begin,
                                          std::int64_t end);

}  // namespace k25::data
