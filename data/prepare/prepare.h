#pragma once
// `k25 prepare DIR... --out corpus`: documents -> tokenizer -> corpus.
//
// A DIR is a domain, named by its last path component. Files are taken by content: UTF-8 text, one
// document a file; or one JSON object a line, {"text"},
// {"prompt","response"} or
// {"messages":[{"role","content"}]} (only responses carry labels; optional "topic", "hops",
// "source"). source_files.h and records.h hold the rules. Symbolic links are skipped and counted,
// so are hidden names. Exact duplicates are counted and dropped (the first in order
// stays); near-duplicates are found by containment of 13-token shingles (duplicates.h), counted,
// share a cluster, and are dropped by option: the smaller of two goes. Sub-task spans, clauses and
// anchors are left empty.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace k25::data {

enum class Duplicates : std::uint8_t { kKeep, kDropExact, kDropNear };

struct PrepareOptions {
  std::vector<std::filesystem::path> folders;
  std::filesystem::path out;
  std::filesystem::path tokenizer;  ///< reuse this model; empty: train one
  std::int32_t vocab = 1000;
  Duplicates duplicates = Duplicates::kDropExact;
  double containment = 0.8;  ///< near-duplicate from this share of the smaller document's shingles
  std::int64_t max_file_tokens = std::int64_t{1} << 30;
  /// Receives what removes all that is unfinished, for a thread that ends the process on a signal;
  /// an empty function when nothing is left to remove. May be empty.
  std::function<void(std::function<void()>)> when_stopped;
};

struct PrepareReport {
  std::int64_t files = 0, links_skipped = 0, hidden_skipped = 0;
  std::int64_t documents = 0;  ///< in the corpus; the rest is `dropped`
  std::int64_t exact_duplicates = 0, near_duplicates = 0, dropped = 0;
  std::int64_t tokens = 0, bytes = 0;  ///< of the documents in the corpus
  std::vector<std::string> warnings;   ///< one line each
  std::vector<std::string> notes;      ///< one line each: "GFDL-1.2 lies to 96 % in GFDL-1.3: kept"
};

/// Deterministic: the same input gives the same bytes. Throws kData for text that is not UTF-8 or
/// holds U+2581 (file and byte offset), an empty folder, a 0-byte file, a broken JSONL line
/// (file:line: column, what was expected), an `out` that exists, cannot be written or is being made
/// by another process, and kUsage for options out of range, a folder that does not exist, and an
/// `out` inside a folder. Nothing is left at `out` on failure. Every document's text is checked
/// to come back from its tokens.
PrepareReport prepare(const PrepareOptions& options);

}  // namespace k25::data
