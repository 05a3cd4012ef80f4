#pragma once
// Near-duplicates by containment of 13-token shingles.
//
// Tokens here are words and do not depend on a tokenizer: runs of letters and digits, ASCII in
// lower case; characters from U+2E80 on (Chinese, Japanese, Korean and beyond) one each; everything
// else separates. A shingle is the XXH64 of 13 neighbouring tokens; a text with fewer tokens has
// one shingle of all of them.
//
// A document is a near-duplicate when a larger one (more distinct shingles; the earlier of two
// equal) that is itself none holds at least `containment` of its shingles. All pairs beyond
// `containment` share a cluster. Exact: candidates come from the rarest shingles of the smaller
// document, as many as cannot all be missing from one that holds enough.

#include <cstdint>
#include <string_view>
#include <vector>

namespace k25::data {

/// Distinct shingles of a text, sorted.
std::vector<std::uint64_t> shingles_of(std::string_view text);

struct NearDuplicates {
  std::vector<std::int64_t> held_by;  ///< the document that holds it, -1 for no near-duplicate
  std::vector<double> share;          ///< of its shingles in held_by
  std::vector<double> share_in_all;   ///< of its shingles in all the other documents together
  std::vector<std::int64_t> cluster;  ///< the first document of its cluster
};

NearDuplicates find_near_duplicates(const std::vector<std::vector<std::uint64_t>>& shingles,
                                    double containment);

}  // namespace k25::data
