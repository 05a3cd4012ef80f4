#pragma once
// Sequences as ISA sources receive them, checked. Everything is inlined: see kernels/core/isa.h.

#include <cstdint>

namespace k25::kernels {

/// The tokens [first, end) of row b: sequence s.
struct SequenceSpan {
  std::int64_t s, b, first, end;
};

struct SequenceView {
  std::int64_t tokens = 0;
  const std::int32_t* border = nullptr;  ///< null: a row of `tokens` is a sequence
  const std::int32_t* doc_begin = nullptr;
  const std::int32_t* doc_end = nullptr;
  std::int64_t doc_begin_stride = 0, doc_end_stride = 0;

  [[gnu::always_inline]] SequenceSpan sequence(std::int64_t s) const {
    if (border == nullptr) return {s, s, 0, tokens};
    return {s, 0, border[s], border[s + 1]};
  }
  /// End of the document of `s` that begins at t.
  [[gnu::always_inline]] std::int64_t document_end(const SequenceSpan& s, std::int64_t t) const {
    return doc_end == nullptr ? s.end : doc_end[s.b * doc_end_stride + t];
  }
  /// Beginning of the document of `s` that ends at t.
  [[gnu::always_inline]] std::int64_t document_begin(const SequenceSpan& s, std::int64_t t) const {
    return doc_begin == nullptr ? s.first : doc_begin[s.b * doc_begin_stride + t - 1];
  }
};

}  // namespace k25::kernels
