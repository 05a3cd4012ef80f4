#pragma once
// Batch: what one micro-batch of training reads. Plain host arrays, sizes fixed by the config.

#include <cstdint>
#include <vector>

#include "data/corpus/corpus.h"

namespace k25::data {

/// Legend  B sequences of T tokens, row-major [B, T].
struct Batch {
  std::int64_t sequences = 0, tokens_per_sequence = 0;
  std::vector<std::int32_t> tokens;  ///< padding holds end_of_document
  std::vector<std::int32_t> labels;  ///< the next token, or -1: document end, masked, padding
  std::vector<std::int32_t>
      doc_begin;  ///< the document [begin, end) around each token, in the window
  std::vector<std::int32_t> doc_end;
  std::vector<std::int32_t> position;    ///< inside the document piece, from 0
  std::vector<std::int64_t> sample;      ///< [B] global sample number, -1: an empty row
  std::vector<std::int32_t> domain;      ///< [B], -1: an empty row
  std::vector<std::vector<Span>> spans;  ///< [B] sub-task spans, positions inside the window
  std::int64_t label_tokens = 0;         ///< labels that are not -1

  void resize(std::int64_t b, std::int64_t t);  ///< all rows empty
};

}  // namespace k25::data
