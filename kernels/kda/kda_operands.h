#pragma once
// Private to kda: views as the ISA build receives them. Not for ISA sources.

#include "kernels/core/tensor.h"
#include "kernels/kda/kda_cpu.h"

namespace k25::kernels {

/// [B, T, heads, E] or [B, T, heads].
template <class T>
KdaHeads<const T> kda_heads(const ConstTensor& t) {
  return {t.data<T>(), t.stride(0), t.stride(1), t.stride(2)};
}
template <class T>
KdaHeads<T> kda_heads(const Tensor& t) {
  return {t.data<T>(), t.stride(0), t.stride(1), t.stride(2)};
}

/// [S, M, K, V], or absent.
template <class A>
KdaStates<const A> kda_states(const ConstTensor& t) {
  if (!t) return {};
  return {t.data<A>(), t.stride(0), 0, t.stride(1), t.stride(2)};
}
template <class A>
KdaStates<A> kda_states(const Tensor& t) {
  if (!t) return {};
  return {t.data<A>(), t.stride(0), 0, t.stride(1), t.stride(2)};
}

}  // namespace k25::kernels
