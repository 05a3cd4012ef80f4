#pragma once
// Private to kda's CUDA sources: views of operands and their elements on the device.

#include <cstdint>

#include "kernels/core/cuda_math.cuh"
#include "kernels/kda/kda_cpu.h"

namespace k25::kernels::kda_cuda {

template <class T>
__device__ __forceinline__ T* head_row(const KdaHeads<T>& x, std::int64_t b, std::int64_t t,
                                       std::int64_t h) {
  return x.data + b * x.batch_stride + t * x.token_stride + h * x.head_stride;
}
template <class A>
__device__ __forceinline__ A* state_at(const KdaStates<A>& x, std::int64_t s, std::int64_t n,
                                       std::int64_t m) {
  return x.data + s * x.sequence_stride + n * x.entry_stride + m * x.head_stride;
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(BFloat16 x) {
  return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16);
}
__device__ __forceinline__ void store_float(float* p, float x) { *p = x; }
__device__ __forceinline__ void store_float(BFloat16* p, float x) {
  p->bits = static_cast<std::uint16_t>(cuda::pack_bf16(x, 0.f));
}

}  // namespace k25::kernels::kda_cuda
