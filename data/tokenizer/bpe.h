#pragma once
// Byte-pair encoding learnt from counted words.
//
// Each step takes the string that the most neighbouring pairs spell (then the shorter one, then the
// smaller one byte by byte) and merges every pair that spells it, as the encoder will. This order
// is total, so the result depends on the words alone. (SentencePiece's own trainer breaks such ties
// by memory address: training twice in one process gave different models.)
//
// Pieces are at most 16 characters. Spaces stand alone in a piece, or one stands at its beginning.

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/words.h"

namespace k25::data {

/// At most `count` merged pieces, in the order they were learnt; fewer when no two neighbours are
/// left.
std::vector<std::string> learn_merges(const CountedWords& words, std::int64_t count);

}  // namespace k25::data
