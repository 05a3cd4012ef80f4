#pragma once
// What the tests of all ops share: contexts for every instruction set of this CPU, reproducible
// random values, tensors between guard bands, finite differences, and the tolerance rule for low
// precision.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/context.h"
#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/core/philox.h"
#include "kernels/core/tensor.h"
#include "tests/kernels/guarded_tensor.h"

namespace k25::op_test {

// ---- contexts ----------------------------------------------------------------------------------

/// Every instruction set up to the best one here (K25_CPU_ISA lowers it).
inline std::vector<CpuIsa> available_isas() {
  std::vector<CpuIsa> isas;
  const CpuIsa best = detect_cpu_isa();
  for (const CpuIsa isa : {CpuIsa::kV1, CpuIsa::kV3, CpuIsa::kV4}) {
    if (isa <= best) isas.push_back(isa);
  }
  return isas;
}

inline Context make_context(CpuIsa isa, ThreadPool* threads = nullptr) {
  Context ctx;
  ctx.isa = isa;
  ctx.threads = threads;
  return ctx;
}

/// The best instruction set, one thread.
inline Context make_context() { return make_context(detect_cpu_isa()); }

/// Runs `body(ctx)` for each instruction set; a failure names it.
template <class Body>
void for_each_isa(const Body& body) {
  for (const CpuIsa isa : available_isas()) {
    SCOPED_TRACE("instruction set " + std::string(cpu_isa_name(isa)));
    Context ctx = make_context(isa);
    body(ctx);
  }
}

/// Runs `body(ctx)` for each instruction set with one thread and with three.
template <class Body>
void for_each_context(const Body& body) {
  ThreadPool pool(3);
  for (const CpuIsa isa : available_isas()) {
    for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
      SCOPED_TRACE("instruction set " + std::string(cpu_isa_name(isa)) +
                   (threads == nullptr ? ", one thread" : ", three threads"));
      Context ctx = make_context(isa, threads);
      body(ctx);
    }
  }
}

/// 64-byte aligned scratch of exactly the planned size, so that ASan sees an overrun.
class Scratch {
 public:
  explicit Scratch(Bytes size) : size_(size) {
    if (size.n == 0) return;
    // posix_memalign, unlike aligned_alloc, takes sizes that are no multiple of the alignment.
    void* data = nullptr;
    if (posix_memalign(&data, 64, static_cast<std::size_t>(size.n)) != 0) std::abort();
    std::memset(data, 0xCD, static_cast<std::size_t>(size.n));
    data_.reset(data);
  }
  Workspace workspace() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> data_;
  Bytes size_;
};

// ---- values ------------------------------------------------------------------------------------

/// `x` as an element of `t` holds it.
inline double round_to(DType t, double x) {
  switch (t) {
    case DType::kFloat32:
      return static_cast<float>(x);
    case DType::kBFloat16:
      return static_cast<float>(BFloat16(static_cast<float>(x)));
    case DType::kInt32:
      return static_cast<std::int32_t>(x);
    case DType::kInt64:
      return static_cast<double>(static_cast<std::int64_t>(x));
    case DType::kUInt8:
      return static_cast<std::uint8_t>(x);
    case DType::kFloat64:
      break;
  }
  return x;
}

/// `count` values in (low, high), a pure function of `name`.
inline std::vector<double> random_values(std::string_view name, std::int64_t count,
                                         double low = -1.0, double high = 1.0) {
  const Philox random(25, 0, name);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto u = static_cast<double>(random.uniform(static_cast<std::uint64_t>(i)));
    values[static_cast<std::size_t>(i)] = low + (high - low) * u;
  }
  return values;
}

/// A bf16 number whose every operation is rounded: the scalar of a naive low-precision oracle.
/// Instantiate a naive function with double (the reference), float, or this.
class NaiveBf16 {
 public:
  NaiveBf16() = default;
  NaiveBf16(double x)  // NOLINT(google-explicit-constructor): literals in naive code
      : value_(static_cast<float>(BFloat16(static_cast<float>(x)))) {}
  explicit operator double() const { return value_; }

  friend NaiveBf16 operator+(NaiveBf16 a, NaiveBf16 b) { return double{a.value_} + b.value_; }
  friend NaiveBf16 operator-(NaiveBf16 a, NaiveBf16 b) { return double{a.value_} - b.value_; }
  friend NaiveBf16 operator*(NaiveBf16 a, NaiveBf16 b) { return double{a.value_} * b.value_; }
  friend NaiveBf16 operator/(NaiveBf16 a, NaiveBf16 b) { return double{a.value_} / b.value_; }
  friend NaiveBf16 operator-(NaiveBf16 a) { return -double{a.value_}; }
  NaiveBf16& operator+=(NaiveBf16 o) { return *this = *this + o; }
  friend NaiveBf16 sqrt(NaiveBf16 a) { return std::sqrt(double{a.value_}); }
  friend NaiveBf16 exp(NaiveBf16 a) { return std::exp(double{a.value_}); }
  friend NaiveBf16 log(NaiveBf16 a) { return std::log(double{a.value_}); }

 private:
  float value_ = 0.f;
};

/// A [rows, cols] (or any shape) tensor of random values, a pure function of `name`.
inline GuardedTensor random_tensor(std::string_view name, DType dtype,
                                   const std::vector<std::int64_t>& shape, Layout layout = {},
                                   double low = -1.0, double high = 1.0) {
  GuardedTensor t(dtype, shape, layout);
  t.set(random_values(name, t.count(), low, high));
  return t;
}

// ---- comparisons -------------------------------------------------------------------------------

/// Elementwise: |ours - expected| <= tolerance * max(1, |expected|). NaN only equals NaN.
inline ::testing::AssertionResult all_near(const std::vector<double>& ours,
                                           const std::vector<double>& expected, double tolerance) {
  if (ours.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << ours.size() << " elements, expected " << expected.size();
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (std::isnan(ours[i]) && std::isnan(expected[i])) continue;
    if (ours[i] == expected[i]) continue;  // infinities
    const double allowed = tolerance * std::max(1.0, std::abs(expected[i]));
    if (!(std::abs(ours[i] - expected[i]) <= allowed)) {
      return ::testing::AssertionFailure() << "element " << i << " is " << ours[i] << ", expected "
                                           << expected[i] << " within " << allowed;
    }
  }
  return ::testing::AssertionSuccess();
}

/// The rule for low precision: max |ours - ref64| <= 2 max |naive - ref64| + floor, where `naive`
/// is the plain formula composed in the low precision. One wrong element is enough to fail.
inline ::testing::AssertionResult low_precision_near(const std::vector<double>& ours,
                                                     const std::vector<double>& naive,
                                                     const std::vector<double>& ref64,
                                                     double floor) {
  if (ours.size() != ref64.size() || naive.size() != ref64.size()) {
    return ::testing::AssertionFailure()
           << "sizes differ: " << ours.size() << ", " << naive.size() << ", " << ref64.size();
  }
  double worst_naive = 0;
  for (std::size_t i = 0; i < ref64.size(); ++i) {
    worst_naive = std::max(worst_naive, std::abs(naive[i] - ref64[i]));
  }
  const double allowed = 2 * worst_naive + floor;
  for (std::size_t i = 0; i < ref64.size(); ++i) {
    if (!(std::abs(ours[i] - ref64[i]) <= allowed)) {
      return ::testing::AssertionFailure()
             << "element " << i << " is " << ours[i] << ", in fp64 " << ref64[i] << ", allowed "
             << allowed << " (naive is off by at most " << worst_naive << ")";
    }
  }
  return ::testing::AssertionSuccess();
}

/// sum w_i y_i, the scalar loss whose gradient with respect to y is w.
inline double weighted_sum(const std::vector<double>& w, const std::vector<double>& y) {
  if (w.size() != y.size()) std::abort();
  double sum = 0;
  for (std::size_t i = 0; i < w.size(); ++i) sum += w[i] * y[i];
  return sum;
}

/// Compares `gradient` with central differences of `loss` in every element of `x` (fp64, restored):
/// |gradient - difference| <= 1e-6 * max(1, |difference|).
inline ::testing::AssertionResult gradient_near(GuardedTensor& x,
                                                const std::vector<double>& gradient,
                                                const std::function<double()>& loss,
                                                double tolerance = 1e-6) {
  if (x.dtype() != DType::kFloat64) {
    return ::testing::AssertionFailure() << "finite differences need fp64";
  }
  if (static_cast<std::int64_t>(gradient.size()) != x.count()) {
    return ::testing::AssertionFailure()
           << gradient.size() << " gradients for " << x.count() << " elements";
  }
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const double saved = x.get(i);
    const double step = 1e-5 * std::max(1.0, std::abs(saved));
    x.set(i, saved + step);
    const double above = loss();
    x.set(i, saved - step);
    const double below = loss();
    x.set(i, saved);
    const double difference = (above - below) / ((saved + step) - (saved - step));
    const double ours = gradient[static_cast<std::size_t>(i)];
    if (!(std::abs(ours - difference) <= tolerance * std::max(1.0, std::abs(difference)))) {
      return ::testing::AssertionFailure()
             << "element " << i << ": gradient " << ours << ", finite difference " << difference;
    }
  }
  return ::testing::AssertionSuccess();
}

/// True when `call` throws Error of `kind` whose message holds every one of `parts`.
inline ::testing::AssertionResult throws_error(const std::function<void()>& call, ErrorKind kind,
                                               std::initializer_list<std::string_view> parts) {
  try {
    call();
  } catch (const Error& e) {
    if (e.kind() != kind) {
      return ::testing::AssertionFailure() << "error of kind " << e.exit_code() << ": " << e.what();
    }
    for (const std::string_view part : parts) {
      if (std::string_view(e.what()).find(part) == std::string_view::npos) {
        return ::testing::AssertionFailure() << "no '" << part << "' in: " << e.what();
      }
    }
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "no error was thrown";
}

}  // namespace k25::op_test
