#include "data/loader/window.h"

#include <algorithm>
#include <limits>

#include "fmt/format.h"
#include "kernels/core/check.h"

namespace k25::data {

namespace {

/// doc_begin, doc_end and position of tokens [begin, end) of a row, which are one document.
void mark_document(Batch& batch, std::int64_t row, std::int64_t begin, std::int64_t end) {
  const std::int64_t base = row * batch.tokens_per_sequence;
  for (std::int64_t i = begin; i < end; ++i) {
    const auto at = static_cast<std::size_t>(base + i);
    batch.doc_begin[at] = static_cast<std::int32_t>(begin);
    batch.doc_end[at] = static_cast<std::int32_t>(end);
    batch.position[at] = static_cast<std::int32_t>(i - begin);
  }
}

/// Tokens and labels of one piece, which starts at `at` in the batch's arrays.
void copy_piece(const Corpus& corpus, const Sampler::Piece& piece, std::size_t at, Batch& batch,
                std::vector<std::uint8_t>& may_be_target) {
  const auto n = static_cast<std::size_t>(piece.end - piece.begin);
  may_be_target.resize(n + 1);
  corpus.read(piece.begin, piece.end, &batch.tokens[at], may_be_target.data());
  // The target of the last token lies behind the window, if the document goes on there.
  std::int32_t next = -1;
  may_be_target[n] = 0;
  const auto& document = corpus.documents()[static_cast<std::size_t>(piece.document)];
  if (piece.end < document.token_end) {
    corpus.read(piece.end, piece.end + 1, &next, &may_be_target[n]);
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (may_be_target[i + 1] == 0) continue;
    batch.labels[at + i] = i + 1 < n ? batch.tokens[at + i + 1] : next;
    ++batch.label_tokens;
  }
}

void copy_spans(const Corpus& corpus, const Sampler::Piece& piece, std::int64_t in_row,
                std::vector<Span>& out) {
  const std::int64_t shift = in_row - piece.begin;
  for (const Span& s : corpus.spans_near(piece.begin, piece.end)) {
    const std::int64_t begin = std::max(s.begin, piece.begin), end = std::min(s.end, piece.end);
    if (begin < end) out.push_back({s.kind, begin + shift, end + shift});
  }
}

}  // namespace

void clear_batch(const Corpus& corpus, Batch& batch) {
  batch.resize(batch.sequences, batch.tokens_per_sequence);
  std::fill(batch.tokens.begin(), batch.tokens.end(), corpus.info().end_of_document);
}

void fill_row(const Corpus& corpus, std::span<const Sampler::Piece> pieces, std::int64_t row,
              Batch& batch) {
  std::vector<std::uint8_t> may_be_target;
  std::int64_t used = 0;
  for (const auto& piece : pieces) {
    const std::int64_t end = used + piece.end - piece.begin;
    K25_CHECK(end <= batch.tokens_per_sequence,
              fmt::format("a window of {} tokens or more for a batch of {} tokens a sequence", end,
                          batch.tokens_per_sequence));
    copy_piece(corpus, piece, static_cast<std::size_t>(row * batch.tokens_per_sequence + used),
               batch, may_be_target);
    mark_document(batch, row, used, end);
    copy_spans(corpus, piece, used, batch.spans[static_cast<std::size_t>(row)]);
    used = end;
  }
  mark_document(batch, row, used, batch.tokens_per_sequence);
}

void Batch::resize(std::int64_t b, std::int64_t t) {
  K25_CHECK(b >= 0 && t >= 0 && t <= std::numeric_limits<std::int32_t>::max(),
            fmt::format("a batch of {} sequences of {} tokens", b, t));
  sequences = b;
  tokens_per_sequence = t;
  const auto rows = static_cast<std::size_t>(b), count = static_cast<std::size_t>(b * t);
  tokens.assign(count, 0);
  labels.assign(count, -1);
  doc_begin.assign(count, 0);
  doc_end.assign(count, 0);
  position.assign(count, 0);
  sample.assign(rows, -1);
  domain.assign(rows, -1);
  spans.resize(rows);
  for (auto& row : spans) row.clear();
  label_tokens = 0;
  for (std::int64_t row = 0; row < b; ++row) mark_document(*this, row, 0, t);
}

}  // namespace k25::data
