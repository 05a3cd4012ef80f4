#pragma once
// How the rows of a batch are cut into sequences, for ops that carry a state from token to token
// (kernels/kda, kernels/conv1d).
//
// Legend  B rows of T tokens, S sequences.
// Rows    every row is one sequence (S = B), or, with `sequences` > 0 and B = 1, the row holds S
//         packed ones: border [S + 1] int32 rises from 0 to T, and sequence s is the tokens
//         [border_s, border_{s+1}). Sequences may be empty.
// Documents  without border, doc_begin and doc_end [B, T] int32 (as for kernels/attention) may cut
//         rows into documents, begin <= t < end. An initial state enters the first document of its
//         row, a final one leaves the last; all other documents begin at zero.
// Devices  borders in device memory are not read back: ops bound what they find there, so that
//         wrong contents give numbers without meaning but no foreign access. check_sequence_borders
//         on a host copy, for Device::kCpu, finds them.
// Errors  kUsage naming op, border, row, token and document that do not fit.

#include <string_view>

#include "kernels/core/tensor.h"

namespace k25::kernels {

struct SequenceShape {
  std::int64_t batch = 0, tokens = 0;
  std::int64_t sequences = 0;  ///< 0: a row is a sequence

  std::int64_t count() const { return sequences > 0 ? sequences : batch; }
};

/// All absent: a row is one sequence.
struct SequenceBorders {
  ConstTensor border_S1;                 ///< with SequenceShape::sequences > 0
  ConstTensor doc_begin_BT, doc_end_BT;  ///< both or neither
};

/// Throws kUsage unless no size is negative and packed sequences lie in one row.
void check_sequence_shape(std::string_view op, const SequenceShape& shape);
/// Throws kUsage unless the borders have the right shapes and, on the CPU, the right values.
void check_sequence_borders(std::string_view op, const SequenceShape& shape,
                            const SequenceBorders& borders, Device device);

}  // namespace k25::kernels
