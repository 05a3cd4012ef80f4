#pragma once
// The ISA kernels behind latent_keys.h, for the rows [begin, end).

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/core/rows.h"

namespace k25::kernels {

/// T is the storage. The shared part has rows alone.
template <class T>
struct LatentKeysForwardArgs {
  std::int64_t heads, own_dim, shared_dim;
  StridedRows<const T> own;
  const T* shared;
  std::int64_t shared_stride;
  StridedRows<T> key;
};
template <class T>
struct LatentKeysBackwardArgs {
  std::int64_t heads, own_dim, shared_dim;
  StridedRows<const T> d_key;
  StridedRows<T> d_own;
  T* d_shared;
  std::int64_t shared_stride;
};

#define K25_LATENT_KEYS_DECLARE(T)                                                         \
  void latent_keys_forward_cpu(const LatentKeysForwardArgs<T>& args, std::int64_t begin,   \
                               std::int64_t end);                                          \
  void latent_keys_backward_cpu(const LatentKeysBackwardArgs<T>& args, std::int64_t begin, \
                                std::int64_t end);
K25_ISA_DECLARE(K25_LATENT_KEYS_DECLARE(float) K25_LATENT_KEYS_DECLARE(BFloat16)
                    K25_LATENT_KEYS_DECLARE(double))
#undef K25_LATENT_KEYS_DECLARE

}  // namespace k25::kernels
