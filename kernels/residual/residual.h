#pragma once
// Residual add:  y = a + b. Backward: both inputs receive dy unchanged, so none is needed; where
// two gradients meet, this op adds them.
//
// Legend  a, b, y: contiguous views of one shape and dtype (fp32, bf16, on the CPU fp64).
// Numerics  added in fp32 for bf16 storage, rounded once.
// Aliasing  y may be a or b.
// Devices  CPU and CUDA, equal bits (IEEE leaves the payload of NaN open).

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct ResidualDesc {
  std::int64_t count = 0;
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};
struct ResidualPlan {
  ResidualDesc desc;
  Bytes workspace_bytes;
};
struct ResidualIn {
  ConstTensor a, b;
};
struct ResidualOut {
  Tensor y;
};

ResidualPlan residual_plan(const ResidualDesc& desc);
void residual_forward(Context& ctx, const ResidualPlan& plan, const ResidualIn& in,
                      const ResidualOut& out, Workspace workspace);

}  // namespace k25::kernels
