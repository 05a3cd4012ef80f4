#pragma once
// From borders that are checked to the view of ISA sources. Not for those.

#include "kernels/sequences/sequence_view.h"
#include "kernels/sequences/sequences.h"

namespace k25::kernels {

inline SequenceView sequence_view(const SequenceShape& shape, const SequenceBorders& borders) {
  SequenceView view;
  view.tokens = shape.tokens;
  if (borders.border_S1) view.border = borders.border_S1.data<std::int32_t>();
  if (borders.doc_begin_BT) {
    view.doc_begin = borders.doc_begin_BT.data<std::int32_t>();
    view.doc_begin_stride = borders.doc_begin_BT.stride(0);
    view.doc_end = borders.doc_end_BT.data<std::int32_t>();
    view.doc_end_stride = borders.doc_end_BT.stride(0);
  }
  return view;
}

}  // namespace k25::kernels
