#pragma once

#include "trainer/train/runtime.h"

namespace k25::trainer {

/// GFLOP/s of the project's own matrix product on one rank, in `precision` (on the CPU in fp32):
/// the ceiling that steps and ops are held against. On a GPU sustained, over a second of products
/// on random numbers.
double gemm_ceiling(Runtime& runtime, DType precision);

}  // namespace k25::trainer
