#pragma once
// From operands that are checked to the views of ISA sources. Not for those.

#include "kernels/attention/attention_cpu.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

template <class T>
HeadsView<const T> heads_view(const ConstTensor& t) {
  if (!t) return {};
  return {t.data<T>(), t.stride(0), t.stride(1), t.stride(2)};
}
template <class T>
HeadsView<T> heads_view(const Tensor& t) {
  if (!t) return {};
  return {t.data<T>(), t.stride(0), t.stride(1), t.stride(2)};
}

}  // namespace k25::kernels
