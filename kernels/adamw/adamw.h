#pragma once
// AdamW on a flat range of parameters, in the arithmetic of kernels/core/update_math.h: CPU builds
// for every instruction set and CUDA give equal bits.
//
// Legend  n elements. master, m, v, grad: [n] fp32, contiguous.
//         old master, m, v (optional, all three): the state to begin from, which stays as it is;
//         overlaps no output. Absent: master, m and v hold it.
//         copy_out (optional): [n] bf16, the new master rounded to nearest even.
//         All operands lie on the device of grad.
// Formula  adamw_update of update_math.h, element by element.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/core/update_math.h"

namespace k25::kernels {

struct AdamWIn {
  ConstTensor grad_n;
  AdamWScalars scalars;
  ConstTensor old_master_n, old_m_n, old_v_n;
};
struct AdamWOut {
  Tensor master_n, m_n, v_n, copy_out_n;
};

void adamw_update(Context& ctx, const AdamWIn& in, const AdamWOut& out);

}  // namespace k25::kernels
