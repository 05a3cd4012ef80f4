#pragma once
// A matrix as ISA sources receive it: they may not include tensor.h, whose inline functions would
// become weak symbols. Strides in elements.

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

}  // namespace k25
