#pragma once
// RMSNorm as the formula says it, in any scalar, for the CPU and the CUDA tests.

#include <cmath>
#include <cstdint>
#include <vector>

namespace k25::rmsnorm_test {

struct Sizes {
  std::int64_t rows, cols;
};

/// y for given s = x + residual, as the formula reads.
template <class S>
std::vector<double> naive_forward(const std::vector<double>& sum, const std::vector<double>& gain,
                                  Sizes s) {
  using std::sqrt;
  std::vector<double> y;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    S total = static_cast<S>(0.0);
    for (std::int64_t c = 0; c < s.cols; ++c) {
      const S v = static_cast<S>(sum[static_cast<std::size_t>(r * s.cols + c)]);
      total += v * v;
    }
    const S eps = static_cast<S>(1e-6);
    const S root = sqrt(total / static_cast<S>(static_cast<double>(s.cols)) + eps);
    for (std::int64_t c = 0; c < s.cols; ++c) {
      const S v = static_cast<S>(sum[static_cast<std::size_t>(r * s.cols + c)]);
      y.push_back(
          static_cast<double>(v / root * static_cast<S>(gain[static_cast<std::size_t>(c)])));
    }
  }
  return y;
}

struct Gradients {
  std::vector<double> dx, dgain;
};

/// The gradient by the quotient rule on y = s g / root, another form than the header's.
template <class S>
Gradients naive_backward(const std::vector<double>& dy, const std::vector<double>& sum,
                         const std::vector<double>& gain, const std::vector<double>& d_sum,
                         Sizes s) {
  using std::sqrt;
  Gradients g{{}, std::vector<double>(gain.size(), 0.0)};
  std::vector<S> dgain(gain.size(), static_cast<S>(0.0));
  const S count = static_cast<S>(static_cast<double>(s.cols));
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const auto at = [&](const std::vector<double>& v, std::int64_t c) {
      return static_cast<S>(v[static_cast<std::size_t>(r * s.cols + c)]);
    };
    const auto gain_at = [&](std::int64_t c) {
      return static_cast<S>(gain[static_cast<std::size_t>(c)]);
    };
    S total = static_cast<S>(0.0);
    S dot = static_cast<S>(0.0);
    for (std::int64_t c = 0; c < s.cols; ++c) {
      total += at(sum, c) * at(sum, c);
      dot += at(dy, c) * gain_at(c) * at(sum, c);
    }
    const S eps = static_cast<S>(1e-6);
    const S square = total / count + eps;
    const S root = sqrt(square);
    for (std::int64_t c = 0; c < s.cols; ++c) {
      S d = at(dy, c) * gain_at(c) / root - at(sum, c) * dot / (count * square * root);
      if (!d_sum.empty()) d += at(d_sum, c);
      g.dx.push_back(static_cast<double>(d));
      dgain[static_cast<std::size_t>(c)] += at(dy, c) * at(sum, c) / root;
    }
  }
  for (std::size_t c = 0; c < dgain.size(); ++c) g.dgain[c] = static_cast<double>(dgain[c]);
  return g;
}

}  // namespace k25::rmsnorm_test
