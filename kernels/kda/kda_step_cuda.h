#pragma once
// Private to kda: the steps of kda_step.h on the GPU, for operands that kda_step.cpp has checked.
// No scratch.

#include "kernels/core/context.h"
#include "kernels/kda/kda_step_cpu.h"

namespace k25::kernels {

void kda_decode_cuda(Context& ctx, const KdaStepArgs<float, float>& args, std::int64_t sequences);
void kda_decode_cuda(Context& ctx, const KdaStepArgs<BFloat16, float>& args,
                     std::int64_t sequences);
void kda_verify_cuda(Context& ctx, const KdaStepArgs<float, float>& args, std::int64_t sequences);
void kda_verify_cuda(Context& ctx, const KdaStepArgs<BFloat16, float>& args,
                     std::int64_t sequences);
void kda_commit_cuda(Context& ctx, const KdaStepArgs<float, float>& args, std::int64_t sequences);
void kda_commit_cuda(Context& ctx, const KdaStepArgs<BFloat16, float>& args,
                     std::int64_t sequences);

}  // namespace k25::kernels
