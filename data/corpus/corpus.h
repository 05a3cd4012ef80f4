#pragma once
// The corpus: a manifest and one or more HDF5 files, written by `k25 prepare`, read by training.
//
//   corpus/manifest.json   format, counts, domains, tokenizer, files with size and block digests
//   corpus/tokens-00000.h5 /tokens (u16 or u32 by vocabulary), /labels (u8 per token: 1 = may be a
//   target)
//                          and the tables below; corpus/tokenizer.model
//
// Token order is document order; documents lie end to end. Every document ends with the tokenizer's
// end-of-document token. A span or clause lies inside one document; the writer sorts them by begin.
// Tables that a corpus has no content for are empty, never absent: documents, spans (sub-task kind,
// begin, end), clauses, anchors, token bytes.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace k25::data {

struct Document {
  std::string source;  ///< path relative to its DIR argument, "#n" added for line n of a JSONL file
  std::string sha256;  ///< of the source text
  std::int32_t domain = 0;   ///< index into CorpusInfo::domains
  std::int32_t topic = -1;   ///< -1: none
  std::int32_t hops = 0;     ///< reasoning hops, 0: unknown
  std::int32_t cluster = 0;  ///< near-duplicates share one; a split never cuts a cluster
  std::int64_t token_begin = 0, token_end = 0;  ///< in the corpus's token order
};

struct Span {
  std::int32_t kind = 0;  ///< index into CorpusInfo::span_kinds
  std::int64_t begin = 0, end = 0;
};

struct CorpusInfo {
  std::int64_t tokens = 0;
  std::int64_t vocab = 0;
  std::int32_t end_of_document = 0;  ///< token id
  std::vector<std::string> domains;
  std::vector<std::string> span_kinds;
  std::string
      digest;  ///< SHA-256 over the manifest, file digests included: the identity of the data
};

/// Read access; payload stays on disk and is read in pieces.
class Corpus {
 public:
  /// Verifies manifest, sizes and headers; payload blocks are verified too (`verify_file`,
  /// threads). Throws kData naming file and values: unknown format, truncated file, digest
  /// mismatch, u16 tokens with a larger vocabulary, a token outside the vocabulary with its offset.
  explicit Corpus(const std::filesystem::path& manifest, int threads = 1);
  ~Corpus();
  Corpus(Corpus&&) noexcept;

  const CorpusInfo& info() const;
  std::span<const Document> documents() const;
  std::span<const Span> spans() const;
  std::span<const Span> clauses() const;
  /// A run of spans() that holds every span overlapping tokens [begin, end), and perhaps others.
  std::span<const Span> spans_near(std::int64_t begin, std::int64_t end) const;
  /// Reads tokens [begin, end) as int32 into `out`, and whether each may be a target into `label`.
  /// Throws kData naming the file when that has changed since it was opened, or holds a token
  /// outside the vocabulary. Safe from any thread.
  void read(std::int64_t begin, std::int64_t end, std::int32_t* out, std::uint8_t* label) const;
  std::filesystem::path tokenizer_path() const;
  /// The bytes token `id` stands for (empty for control tokens).
  std::string_view token_bytes(std::int32_t id) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What `prepare` hands over; the writer makes it a corpus.
struct CorpusContent {
  CorpusInfo info;  ///< tokens and digest are filled in by the writer
  std::vector<Document> documents;
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> labels;
  std::vector<Span> spans, clauses;
  std::vector<std::string> token_bytes;
  std::filesystem::path tokenizer;                       ///< copied in
  std::int64_t max_file_tokens = std::int64_t{1} << 30;  ///< documents are not cut
};

/// Writes folder `out` whole or not at all (temporary name, fsync, rename). Throws kData when `out`
/// exists.
void write_corpus(const std::filesystem::path& out, const CorpusContent& content);

}  // namespace k25::data
