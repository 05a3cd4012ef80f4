#pragma once
// The arithmetic that decides bits: update, selection and noise, one text for host and device.
//
// Only + - * / sqrt and explicit fma, each correctly rounded by IEEE 754, so CPU builds for every
// instruction set and CUDA give equal bits. The compiler may not contract: every target builds with
// -ffp-contract=off, nvcc with -fmad=false where this header is included.

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define K25_HOST_DEVICE __host__ __device__
#else
#define K25_HOST_DEVICE
#endif

namespace k25 {

/// Scalars of one AdamW update, computed once on the host (optim/adamw) and passed by value.
/// Source: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2;
/// the bias corrections use the running product of the betas, so that beta1 may move.
struct AdamWScalars {
  float grad_scale = 1.f;  ///< multiplies the raw gradient: 1 / label tokens x clip factor
  float beta1 = 0.9f;
  float one_minus_beta1 = 0.1f;
  float beta2 = 0.999f;
  float one_minus_beta2 = 0.001f;
  float bias_correction1 = 1.f;  ///< 1 / (1 - prod beta1)
  float bias_correction2 = 1.f;  ///< 1 / (1 - prod beta2)
  float eps = 1e-8f;
  float lr = 0.f;
  float lr_weight_decay = 0.f;  ///< lr x weight_decay; 0 for parameters without decay
};

struct AdamWState {
  float master;
  float m;
  float v;
};

/// g' = grad_scale g; m = beta1 m + (1-beta1) g'; v = beta2 v + (1-beta2) g'^2;
/// w = w - lr_wd w - lr (m c1) / (sqrt(v c2) + eps).
K25_HOST_DEVICE inline AdamWState adamw_update(AdamWState s, float grad, const AdamWScalars& a) {
  const float g = grad * a.grad_scale;
  const float m = ::fmaf(a.beta1, s.m, a.one_minus_beta1 * g);
  const float v = ::fmaf(a.beta2, s.v, a.one_minus_beta2 * (g * g));
  const float update = (m * a.bias_correction1) / (::sqrtf(v * a.bias_correction2) + a.eps);
  const float decayed = ::fmaf(-a.lr_weight_decay, s.master, s.master);
  return {::fmaf(-a.lr, update, decayed), m, v};
}

/// Natural logarithm of a positive normal float, the same bits everywhere; other arguments give a
/// meaningless number. Error below 0.91 ulp (every normal float was compared with the double
/// logarithm).
///
/// x = 2^e m with m in [sqrt(1/2), sqrt(2)), f = m - 1:
/// log x = e ln 2 + f - f^2 / 2 + f^3 P(f), P a degree 7 fit of the rest (relative error 6e-9).
K25_HOST_DEVICE inline float exact_log(float x) {
  constexpr std::uint32_t kSqrtHalf = 0x3f3504f3u;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::int32_t e = static_cast<std::int32_t>(bits - kSqrtHalf) >> 23;
  const float f = std::bit_cast<float>(bits - (static_cast<std::uint32_t>(e) << 23)) - 1.f;
  float p = -0x1.38b544p-4f;
  p = ::fmaf(p, f, 0x1.055b5ep-3f);
  p = ::fmaf(p, f, -0x1.0d8548p-3f);
  p = ::fmaf(p, f, 0x1.22da1ep-3f);
  p = ::fmaf(p, f, -0x1.547244p-3f);
  p = ::fmaf(p, f, 0x1.99a004p-3f);
  p = ::fmaf(p, f, -0x1.000226p-2f);
  p = ::fmaf(p, f, 0x1.555554p-2f);
  const float f2 = f * f;
  const float rest = ::fmaf(f2 * f, p, -0.5f * f2);
  // ln 2 in two parts: e times the first is exact.
  const float k = static_cast<float>(e);
  return ::fmaf(k, 0x1.62e4p-1f, f + ::fmaf(k, 0x1.7f7d1cp-20f, rest));
}

/// The x with Phi(x) = u, Phi the standard normal distribution function, 0 < u < 1 and u normal:
/// turns a uniform number into a normal one, the same bits everywhere.
/// |error| <= 4e-7 max(1, |x|), measured over all exponents; antisymmetric where 1 - u is exact.
/// Source: Wichura, "Algorithm AS 241: The percentage points of the normal distribution",
/// Applied Statistics 37, 1988, routine PPND7.
K25_HOST_DEVICE inline float exact_normal(float u) {
  const float q = u - 0.5f;
  const float distance = q < 0.f ? -q : q;
  if (distance <= 0.425f) {
    const float r = ::fmaf(-q, q, 0.180625f);
    const float num =
        ::fmaf(::fmaf(::fmaf(59.109374720f, r, 159.29113202f), r, 50.434271938f), r, 3.3871327179f);
    const float den =
        ::fmaf(::fmaf(::fmaf(67.187563600f, r, 78.757757664f), r, 17.895169469f), r, 1.f);
    return q * num / den;
  }
  const float tail = q < 0.f ? u : 1.f - u;
  float r = ::sqrtf(-exact_log(tail));
  float num, den;
  if (r <= 5.f) {
    r -= 1.6f;
    num = ::fmaf(::fmaf(::fmaf(0.17023821103f, r, 1.3067284816f), r, 2.7568153900f), r,
                 1.4234372777f);
    den = ::fmaf(::fmaf(0.12021132975f, r, 0.73700164250f), r, 1.f);
  } else {
    r -= 5.f;
    num = ::fmaf(::fmaf(::fmaf(0.017337203997f, r, 0.42868294337f), r, 3.0812263860f), r,
                 6.6579051150f);
    den = ::fmaf(::fmaf(0.012258202635f, r, 0.24197894225f), r, 1.f);
  }
  const float x = num / den;
  return q < 0.f ? -x : x;
}

}  // namespace k25
