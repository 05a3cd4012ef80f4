#pragma once
// SentencePiece's model file: what it says about itself, and writing one. SentencePiece's C++
// interface does not tell how a model treats text, and its normaliser trusts the tables in the
// file, so both are read here first.

#include <string>
#include <string_view>
#include <vector>

namespace k25::data {

/// Why the model in `bytes` cannot be used for exact text, in one line; empty when it can.
std::string why_model_is_unfit(std::string_view bytes);

/// A SentencePiece model: BPE with byte fallback that leaves text as it is. `merges` in the order
/// they were learnt, then `characters`; both with plain spaces.
std::string make_model(const std::vector<std::string>& merges,
                       const std::vector<std::string>& characters);

}  // namespace k25::data
