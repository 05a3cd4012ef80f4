#include "data/corpus/checks.h"

#include <algorithm>

#include "fmt/format.h"
#include "kernels/core/check.h"

namespace k25::data {

void check_documents(const std::string& name, const CorpusInfo& info,
                     std::span<const Document> documents, std::int64_t begin, std::int64_t end) {
  std::int64_t at = begin;
  for (const Document& d : documents) {
    if (d.token_begin != at || d.token_end <= d.token_begin) {
      fail(ErrorKind::kData,
           fmt::format("{}: document '{}' has tokens [{}, {}), expected some from {}", name,
                       d.source, d.token_begin, d.token_end, at));
    }
    if (d.domain < 0 || d.domain >= static_cast<std::int64_t>(info.domains.size())) {
      fail(ErrorKind::kData, fmt::format("{}: document '{}' is of domain {}, there are {}", name,
                                         d.source, d.domain, info.domains.size()));
    }
    at = d.token_end;
  }
  if (at != end) {
    fail(ErrorKind::kData,
         fmt::format("{}: documents end at token {}, expected {}", name, at, end));
  }
}

void check_spans(const std::string& name, const std::string& table, std::span<const Span> spans,
                 std::span<const Document> documents, std::int64_t kinds) {
  std::int64_t last = 0;
  for (const Span& s : spans) {
    const auto after =
        std::upper_bound(documents.begin(), documents.end(), s.begin,
                         [](std::int64_t at, const Document& d) { return at < d.token_begin; });
    const bool inside = s.begin < s.end && after != documents.begin() &&
                        s.end <= std::prev(after)->token_end && s.begin >= last;
    if (!inside || s.kind < 0 || (kinds >= 0 && s.kind >= kinds)) {
      fail(ErrorKind::kData,
           fmt::format("{}: {} holds [{}, {}) of kind {}: out of order, of no known kind, or not "
                       "inside one document",
                       name, table, s.begin, s.end, s.kind));
    }
    last = s.begin;
  }
}

void check_tokens(const std::string& name, std::span<const std::int32_t> tokens, std::int64_t begin,
                  std::int64_t vocab) {
  // Negative ids are huge when read as unsigned: one comparison finds both.
  using Unsigned = std::uint32_t;
  Unsigned largest = 0;
  for (const std::int32_t token : tokens) largest = std::max(largest, static_cast<Unsigned>(token));
  if (static_cast<std::int64_t>(largest) < vocab) return;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (static_cast<std::int64_t>(static_cast<Unsigned>(tokens[i])) >= vocab) {
      fail(ErrorKind::kData,
           fmt::format("{}: token {} at offset {} {} vocab {}", name, tokens[i],
                       begin + static_cast<std::int64_t>(i),
                       static_cast<std::int64_t>(tokens[i]) < 0 ? "< 0, of" : ">=", vocab));
    }
  }
}

void check_labels(const std::string& name, std::span<const std::uint8_t> labels,
                  std::int64_t begin) {
  std::uint8_t all = 0;
  for (const std::uint8_t label : labels) all |= label;
  if (all <= 1) return;
  const auto bad = std::find_if(labels.begin(), labels.end(), [](std::uint8_t l) { return l > 1; });
  fail(ErrorKind::kData, fmt::format("{}: label {} at offset {}, expected 0 or 1", name, *bad,
                                     begin + (bad - labels.begin())));
}

void fail_end_of_document(const std::string& name, const Document& document, std::int32_t token,
                          std::int32_t expected) {
  fail(ErrorKind::kData,
       fmt::format("{}: document '{}' ends with token {}, expected the end-of-document token {}",
                   name, document.source, token, expected));
}

}  // namespace k25::data
