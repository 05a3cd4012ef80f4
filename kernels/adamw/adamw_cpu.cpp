#include "kernels/adamw/adamw_cpu.h"

#include <cstring>

#include "kernels/core/stream_out.h"
#include "kernels/core/vector_math.h"

namespace k25::kernels::K25_ISA {
namespace {

// Restrict parameters, no struct: only so does the loop vectorise. The x86-64 build has no fma
// instruction and calls libm's, which rounds the same and is slow.
void update(float* __restrict master, float* __restrict m, float* __restrict v,
            const float* __restrict grad, const AdamWScalars a, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const AdamWState next = ::k25::adamw_update({master[i], m[i], v[i]}, grad[i], a);
    master[i] = next.master;
    m[i] = next.m;
    v[i] = next.v;
  }
}

void round_to_bf16(const float* __restrict x, BFloat16* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) store_value(y + i, x[i]);
}

constexpr std::int64_t kBlock = 1024;  // what is read again is still in the first-level cache

void update_in_place(const AdamWRange& r, const AdamWScalars& scalars) {
  for (std::int64_t at = 0; at < r.count; at += kBlock) {
    const std::int64_t n = r.count - at < kBlock ? r.count - at : kBlock;
    update(r.master + at, r.m + at, r.v + at, r.grad + at, scalars, n);
    if (r.copy_out != nullptr) round_to_bf16(r.master + at, r.copy_out + at, n);
  }
}

// Streaming stores: the lines of the new state are not read from memory only to be overwritten.
void update_aside(const AdamWRange& r, const AdamWScalars& scalars) {
  alignas(64) float master[kBlock], m[kBlock], v[kBlock];
  for (std::int64_t at = 0; at < r.count; at += kBlock) {
    const std::int64_t n = r.count - at < kBlock ? r.count - at : kBlock;
    const auto bytes = static_cast<std::size_t>(n) * sizeof(float);
    std::memcpy(master, r.old_master + at, bytes);
    std::memcpy(m, r.old_m + at, bytes);
    std::memcpy(v, r.old_v + at, bytes);
    update(master, m, v, r.grad + at, scalars, n);
    if (r.copy_out != nullptr) round_to_bf16(master, r.copy_out + at, n);
    stream_out(master, r.master + at, n);
    stream_out(m, r.m + at, n);
    stream_out(v, r.v + at, n);
  }
  stream_fence();
}

}  // namespace

void adamw_cpu(const AdamWRange& r, const AdamWScalars& scalars) {
  r.old_master == r.master ? update_in_place(r, scalars) : update_aside(r, scalars);
}

}  // namespace k25::kernels::K25_ISA
