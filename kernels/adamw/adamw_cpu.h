#pragma once
// The ISA kernel behind adamw.h.

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/core/update_math.h"

namespace k25::kernels {

/// One contiguous range; copy_out may be null. The old state may be the new one's memory.
struct AdamWRange {
  const float* old_master;
  const float* old_m;
  const float* old_v;
  float* master;
  float* m;
  float* v;
  const float* grad;
  BFloat16* copy_out;
  std::int64_t count;
};

K25_ISA_DECLARE(void adamw_cpu(const AdamWRange& range, const AdamWScalars& scalars);)

}  // namespace k25::kernels
