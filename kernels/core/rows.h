#pragma once
// Views as ISA sources receive them: they may not include tensor.h, whose inline functions would
// become weak symbols. Strides in elements. operand.h makes them.

#include <cstdint>

namespace k25 {

struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;
};
struct ConstRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

/// Three dimensions, the last of them dense: [outer, inner, elements].
template <class T>
struct StridedRows {
  T* data = nullptr;  ///< null: absent
  std::int64_t outer_stride = 0, inner_stride = 0;

  [[gnu::always_inline]] T* row(std::int64_t outer, std::int64_t inner) const {
    return data + outer * outer_stride + inner * inner_stride;
  }
};

}  // namespace k25
