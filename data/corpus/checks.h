#pragma once
// What must hold in every corpus, checked when one is written and when one is read. Internal to
// data/corpus. All throw kData, beginning with `name`.

#include <cstdint>
#include <span>
#include <string>

#include "data/corpus/corpus.h"

namespace k25::data {

/// Documents lie end to end from `begin` to `end`, none empty, each of a known domain.
void check_documents(const std::string& name, const CorpusInfo& info,
                     std::span<const Document> documents, std::int64_t begin, std::int64_t end);

/// Sorted by begin, each inside one document; kinds below `kinds` (-1: any from 0).
void check_spans(const std::string& name, const std::string& table, std::span<const Span> spans,
                 std::span<const Document> documents, std::int64_t kinds);

/// The tokens at corpus offset `begin`: all inside the vocabulary; labels are 0 or 1.
void check_tokens(const std::string& name, std::span<const std::int32_t> tokens, std::int64_t begin,
                  std::int64_t vocab);
void check_labels(const std::string& name, std::span<const std::uint8_t> labels,
                  std::int64_t begin);

[[noreturn]] void fail_end_of_document(const std::string& name, const Document& document,
                                       std::int32_t token, std::int32_t expected);

}  // namespace k25::data
