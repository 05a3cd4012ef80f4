#include "kernels/core/cuda_check.h"
#include "kernels/core/cuda_math.cuh"
#include "kernels/swiglu/swiglu_cuda.h"

namespace k25::kernels {
namespace {

/// 1 / (1 + exp(-z)). In bf16 with the fast units: exact exp and division would cost more than the
/// memory does.
template <class T>
__device__ __forceinline__ float sigmoid(float z) {
  if constexpr (std::is_same_v<T, BFloat16>) return __fdividef(1.f, 1.f + __expf(-z));
  return 1.f / (1.f + expf(-z));
}

template <class T>
struct ForwardOp {
  const T* gate_up;
  std::int64_t gate_up_stride;
  T* out;
  std::int64_t out_stride;
  std::int64_t cols;

  template <int N>
  struct In {
    cuda::Vec<T, N> gate, up;
  };
  template <int N>
  __device__ In<N> load(std::int64_t r, std::int64_t c) const {
    const T* const gate = gate_up + r * gate_up_stride + c;
    return {cuda::load_aligned<T, N>(gate), cuda::load_aligned<T, N>(gate + cols)};
  }
  template <int N>
  __device__ void finish(std::int64_t r, std::int64_t c, const In<N>& in) const {
    float y[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = in.gate.get(j);
      y[j] = g * sigmoid<T>(g) * in.up.get(j);
    }
    cuda::store_aligned(out + r * out_stride + c, cuda::Vec<T, N>::narrow(y));
  }
};

template <class T>
struct BackwardOp {
  const T* dout;
  std::int64_t dout_stride;
  const T* gate_up;
  std::int64_t gate_up_stride;
  T* d_gate_up;
  std::int64_t d_gate_up_stride;
  T* out;  // null: not wanted
  std::int64_t out_stride;
  std::int64_t cols;

  template <int N>
  struct In {
    cuda::Vec<T, N> dout, gate, up;
  };
  template <int N>
  __device__ In<N> load(std::int64_t r, std::int64_t c) const {
    const T* const gate = gate_up + r * gate_up_stride + c;
    return {cuda::load_aligned<T, N>(dout + r * dout_stride + c), cuda::load_aligned<T, N>(gate),
            cuda::load_aligned<T, N>(gate + cols)};
  }
  template <int N>
  __device__ void finish(std::int64_t r, std::int64_t c, const In<N>& in) const {
    float dgate[N], dup[N], y[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = in.gate.get(j), d = in.dout.get(j);
      const float s = sigmoid<T>(g);
      dgate[j] = d * in.up.get(j) * s * (1 + g * (1 - s));
      dup[j] = d * (g * s);
      y[j] = g * s * in.up.get(j);
    }
    T* const to = d_gate_up + r * d_gate_up_stride + c;
    cuda::store_aligned(to, cuda::Vec<T, N>::narrow(dgate));
    cuda::store_aligned(to + cols, cuda::Vec<T, N>::narrow(dup));
    if (out != nullptr) {
      cuda::store_aligned(out + r * out_stride + c, cuda::Vec<T, N>::narrow(y));
    }
  }
};

template <class T>
void forward(Context& ctx, const SwigluDesc& d, const SwigluForwardIn& in,
             const SwigluForwardOut& out) {
  const ForwardOp<T> op{.gate_up = in.gate_up_NG.data<T>(),
                        .gate_up_stride = in.gate_up_NG.stride(0),
                        .out = out.out_NF.data<T>(),
                        .out_stride = out.out_NF.stride(0),
                        .cols = d.cols};
  const bool aligned = cuda::all_aligned(cuda::kVectorBytes, op.gate_up, op.out) &&
                       cuda::vector_rows<T>(d.rows, d.cols, op.gate_up_stride, op.out_stride);
  cuda::launch_rows<cuda::kVectorOf<T>, 2>(ctx, op, d.rows, d.cols, aligned);
  K25_CUDA_CHECK_LAUNCH();
}

template <class T>
void backward(Context& ctx, const SwigluDesc& d, const SwigluBackwardIn& in,
              const SwigluBackwardOut& out) {
  const BackwardOp<T> op{.dout = in.dout_NF.data<T>(),
                         .dout_stride = in.dout_NF.stride(0),
                         .gate_up = in.gate_up_NG.data<T>(),
                         .gate_up_stride = in.gate_up_NG.stride(0),
                         .d_gate_up = out.d_gate_up_NG.data<T>(),
                         .d_gate_up_stride = out.d_gate_up_NG.stride(0),
                         .out = out.out_NF ? out.out_NF.data<T>() : nullptr,
                         .out_stride = out.out_NF ? out.out_NF.stride(0) : d.cols,
                         .cols = d.cols};
  const bool aligned =
      cuda::all_aligned(cuda::kVectorBytes, op.dout, op.gate_up, op.d_gate_up, op.out) &&
      cuda::vector_rows<T>(d.rows, d.cols, op.dout_stride, op.gate_up_stride, op.d_gate_up_stride,
                           op.out_stride);
  cuda::launch_rows<cuda::kVectorOf<T>, 2>(ctx, op, d.rows, d.cols, aligned);
  K25_CUDA_CHECK_LAUNCH();
}

}  // namespace

void swiglu_forward_cuda(Context& ctx, const SwigluPlan& plan, const SwigluForwardIn& in,
                         const SwigluForwardOut& out) {
  if (plan.desc.dtype == DType::kBFloat16) return forward<BFloat16>(ctx, plan.desc, in, out);
  forward<float>(ctx, plan.desc, in, out);
}

void swiglu_backward_cuda(Context& ctx, const SwigluPlan& plan, const SwigluBackwardIn& in,
                          const SwigluBackwardOut& out) {
  if (plan.desc.dtype == DType::kBFloat16) return backward<BFloat16>(ctx, plan.desc, in, out);
  backward<float>(ctx, plan.desc, in, out);
}

}  // namespace k25::kernels
