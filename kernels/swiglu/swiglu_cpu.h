#pragma once
// The ISA kernels behind swiglu.h, for the rows [begin, end).

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/core/rows.h"

namespace k25::kernels {

struct SwigluForwardArgs {
  DType dtype;
  std::int64_t cols;
  ConstRows gate_up;
  Rows out;
};
struct SwigluBackwardArgs {
  DType dtype;
  std::int64_t cols;
  ConstRows dout;
  ConstRows gate_up;
  Rows d_gate_up;
  Rows out;  // null: not wanted
};

K25_ISA_DECLARE(void swiglu_forward_cpu(const SwigluForwardArgs& args, std::int64_t begin,
                                        std::int64_t end);
                void swiglu_backward_cpu(const SwigluBackwardArgs& args, std::int64_t begin,
                                         std::int64_t end);)

}  // namespace k25::kernels
