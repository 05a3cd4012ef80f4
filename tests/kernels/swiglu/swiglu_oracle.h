#pragma once
// SwiGLU as the formula says it, in any scalar, for the CPU and the CUDA tests.

#include <cmath>
#include <cstdint>
#include <vector>

namespace k25::swiglu_test {

struct Sizes {
  std::int64_t rows, cols;
};

template <class S>
std::vector<double> naive_forward(const std::vector<double>& gate_up, Sizes s) {
  using std::exp;
  std::vector<double> out;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t f = 0; f < s.cols; ++f) {
      const S gate = static_cast<S>(gate_up[static_cast<std::size_t>(r * 2 * s.cols + f)]);
      const S up = static_cast<S>(gate_up[static_cast<std::size_t>(r * 2 * s.cols + s.cols + f)]);
      const S one = static_cast<S>(1.0);
      const S e = exp(-gate);
      out.push_back(static_cast<double>(gate / (one + e) * up));
    }
  }
  return out;
}

template <class S>
std::vector<double> naive_backward(const std::vector<double>& dout,
                                   const std::vector<double>& gate_up, Sizes s) {
  using std::exp;
  std::vector<double> result(gate_up.size());
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t f = 0; f < s.cols; ++f) {
      const auto at = static_cast<std::size_t>(r * 2 * s.cols + f);
      const auto up_at = at + static_cast<std::size_t>(s.cols);
      const S gate = static_cast<S>(gate_up[at]);
      const S up = static_cast<S>(gate_up[up_at]);
      const S d = static_cast<S>(dout[static_cast<std::size_t>(r * s.cols + f)]);
      const S one = static_cast<S>(1.0);
      const S e = exp(-gate);
      const S sigmoid = one / (one + e);
      result[at] = static_cast<double>(d * up * (sigmoid * (one + gate * (one - sigmoid))));
      result[up_at] = static_cast<double>(d * (gate * sigmoid));
    }
  }
  return result;
}

}  // namespace k25::swiglu_test
