#include "kernels/swiglu/swiglu_cpu.h"

#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

template <class T>
void forward_row(const T* __restrict gate, const T* __restrict up, T* __restrict out,
                 std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto g = load_value(gate + i);
    store_value(out + i, g / (1 + exp_approx(-g)) * load_value(up + i));
  }
}

template <class T, bool kWithOut>
void backward_row(const T* dout, const T* gate, const T* up, T* dgate, T* dup, T* out,
                  std::int64_t n) {
#pragma GCC ivdep  // the outputs are the inputs, element by element, or apart
  for (std::int64_t i = 0; i < n; ++i) {
    const auto g = load_value(gate + i);
    const auto u = load_value(up + i);
    const auto d = load_value(dout + i);
    const auto e = 1 + exp_approx(-g);
    const auto s = 1 / e;
    if constexpr (kWithOut) store_value(out + i, g / e * u);
    store_value(dgate + i, d * u * s * (1 + g * (1 - s)));
    store_value(dup + i, d * (g * s));
  }
}

template <class T>
void forward(const SwigluForwardArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const T* gate = static_cast<const T*>(a.gate_up.data) + r * a.gate_up.stride;
    forward_row(gate, gate + a.cols, static_cast<T*>(a.out.data) + r * a.out.stride, a.cols);
  }
}

template <class T>
void backward(const SwigluBackwardArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const T* gate = static_cast<const T*>(a.gate_up.data) + r * a.gate_up.stride;
    const T* dout = static_cast<const T*>(a.dout.data) + r * a.dout.stride;
    T* dgate = static_cast<T*>(a.d_gate_up.data) + r * a.d_gate_up.stride;
    if (a.out.data == nullptr) {
      backward_row<T, false>(dout, gate, gate + a.cols, dgate, dgate + a.cols, nullptr, a.cols);
    } else {
      T* out = static_cast<T*>(a.out.data) + r * a.out.stride;
      backward_row<T, true>(dout, gate, gate + a.cols, dgate, dgate + a.cols, out, a.cols);
    }
  }
}

}  // namespace

void swiglu_forward_cpu(const SwigluForwardArgs& args, std::int64_t begin, std::int64_t end) {
  switch (args.dtype) {
    case DType::kFloat32:
      return forward<float>(args, begin, end);
    case DType::kBFloat16:
      return forward<BFloat16>(args, begin, end);
    default:
      return forward<double>(args, begin, end);
  }
}

void swiglu_backward_cpu(const SwigluBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  switch (args.dtype) {
    case DType::kFloat32:
      return backward<float>(args, begin, end);
    case DType::kBFloat16:
      return backward<BFloat16>(args, begin, end);
    default:
      return backward<double>(args, begin, end);
  }
}

}  // namespace k25::kernels::K25_ISA
