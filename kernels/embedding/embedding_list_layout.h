#pragma once
// Private to embedding: where the lists of its backward on the GPU lie in the workspace. Host code
// only, so that every build plans the same bytes.

#include <algorithm>
#include <cstdint>

#include "kernels/embedding/embedding.h"

namespace k25::kernels {

inline constexpr int kManyTokens = 64;              ///< more than these are many
inline constexpr std::int64_t kBucketBytes = 16;    ///< of a row that occurs
inline constexpr std::int64_t kListAlignment = 16;  ///< of every part

/// First bytes of the parts, in their order; see embedding_lists.cuh for what they hold.
struct EmbeddingListLayout {
  std::int64_t totals = 0, count = 0, cursor = 0, few = 0, many = 0, position = 0;
  Bytes total;
};

inline EmbeddingListLayout embedding_list_layout(const EmbeddingDesc& d) {
  std::int64_t at = 0;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t begin = at;
    at += (bytes + kListAlignment - 1) / kListAlignment * kListAlignment;
    return begin;
  };
  EmbeddingListLayout layout;
  layout.totals = take(2 * 8);
  layout.count = take(d.vocab * 4);
  layout.cursor = take(d.vocab * 4);
  layout.few = take(std::min(d.tokens, d.vocab) * kBucketBytes);
  layout.many = take(d.tokens / kManyTokens * kBucketBytes);
  layout.position = take(d.tokens * 4);
  layout.total = Bytes{at};
  return layout;
}

}  // namespace k25::kernels
