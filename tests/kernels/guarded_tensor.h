#pragma once
// A tensor between guard bands, for the tests of ops.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/tensor.h"

namespace k25::op_test {

/// How a GuardedTensor lies in memory.
struct Layout {
  std::int64_t row_padding = 0;  ///< elements between two rows (of the last dimension)
  std::int64_t shift = 0;        ///< elements by which the first lies after a 64-byte border
};

/// Owns one tensor. Every byte around it, padding between rows included, holds a sentinel.
/// Elements start as 0x7f bytes (no useful number in any dtype), so an unwritten output shows.
class GuardedTensor {
 public:
  GuardedTensor(DType dtype, std::vector<std::int64_t> shape, Layout layout = {})
      : dtype_(dtype), shape_(std::move(shape)) {
    const std::int64_t cols = shape_.empty() ? 1 : shape_.back();
    count_ = 1;
    for (const std::int64_t n : shape_) count_ *= n;
    const std::int64_t rows = cols == 0 ? 0 : count_ / cols;
    row_elements_ = cols;
    row_stride_ = cols + layout.row_padding;
    begin_ = kBand + layout.shift * dtype_bytes(dtype);
    const std::int64_t span = rows * row_stride_ * dtype_bytes(dtype);
    size_ = begin_ + span + kBand;
    size_ += (kBorder - size_ % kBorder) % kBorder;
    storage_.reset(
        static_cast<std::uint8_t*>(std::aligned_alloc(kBorder, static_cast<std::size_t>(size_))));
    std::memset(storage_.get(), kSentinel, static_cast<std::size_t>(size_));
    for (std::int64_t i = 0; i < count_; ++i) {
      std::memset(element(i), kUnwritten, static_cast<std::size_t>(dtype_bytes(dtype_)));
    }
  }
  GuardedTensor(DType dtype, std::vector<std::int64_t> shape, const std::vector<double>& values,
                Layout layout = {})
      : GuardedTensor(dtype, std::move(shape), layout) {
    set(values);
  }

  /// The view given to the op. A padded tensor is a column slice of a wider one.
  Tensor tensor() const {
    void* data = storage_.get() + begin_;
    if (row_stride_ == row_elements_ || shape_.size() < 2) return Tensor(data, dtype_, shape_);
    std::vector<std::int64_t> wide = shape_;
    wide.back() = row_stride_;
    return Tensor(data, dtype_, wide).slice(static_cast<int>(shape_.size()) - 1, 0, row_elements_);
  }
  operator Tensor() const { return tensor(); }       // NOLINT(google-explicit-constructor)
  operator ConstTensor() const { return tensor(); }  // NOLINT(google-explicit-constructor)

  /// Everything, guard bands included; the first element lies first_byte() after its start.
  std::uint8_t* storage() const { return storage_.get(); }
  std::int64_t storage_bytes() const { return size_; }
  std::int64_t first_byte() const { return begin_; }

  DType dtype() const { return dtype_; }
  std::int64_t count() const { return count_; }

  /// Element `i` in row-major order, as a double.
  double get(std::int64_t i) const {
    switch (dtype_) {
      case DType::kFloat32:
        return load<float>(i);
      case DType::kBFloat16:
        return static_cast<float>(load<BFloat16>(i));
      case DType::kFloat64:
        return load<double>(i);
      case DType::kInt32:
        return load<std::int32_t>(i);
      case DType::kInt64:
        return static_cast<double>(load<std::int64_t>(i));
      case DType::kUInt8:
        return load<std::uint8_t>(i);
    }
    return 0;
  }
  /// Rounds `x` to the dtype and stores it.
  void set(std::int64_t i, double x) {
    switch (dtype_) {
      case DType::kFloat32:
        return store(i, static_cast<float>(x));
      case DType::kBFloat16:
        return store(i, BFloat16(static_cast<float>(x)));
      case DType::kFloat64:
        return store(i, x);
      case DType::kInt32:
        return store(i, static_cast<std::int32_t>(x));
      case DType::kInt64:
        return store(i, static_cast<std::int64_t>(x));
      case DType::kUInt8:
        return store(i, static_cast<std::uint8_t>(x));
    }
  }
  std::vector<double> get() const {
    std::vector<double> values(static_cast<std::size_t>(count_));
    for (std::int64_t i = 0; i < count_; ++i) values[static_cast<std::size_t>(i)] = get(i);
    return values;
  }
  void set(const std::vector<double>& values) {
    if (static_cast<std::int64_t>(values.size()) != count_) std::abort();
    for (std::int64_t i = 0; i < count_; ++i) set(i, values[static_cast<std::size_t>(i)]);
  }
  void fill(double x) {
    for (std::int64_t i = 0; i < count_; ++i) set(i, x);
  }
  /// Element bytes in row-major order, for comparisons bit by bit.
  std::vector<std::uint8_t> bits() const {
    const auto n = static_cast<std::size_t>(dtype_bytes(dtype_));
    std::vector<std::uint8_t> out(static_cast<std::size_t>(count_) * n);
    for (std::int64_t i = 0; i < count_; ++i) {
      std::memcpy(out.data() + static_cast<std::size_t>(i) * n, element(i), n);
    }
    return out;
  }

  /// True when no byte outside the elements changed.
  ::testing::AssertionResult guards_intact() const {
    const std::int64_t row_bytes = row_elements_ * dtype_bytes(dtype_);
    const std::int64_t stride_bytes = row_stride_ * dtype_bytes(dtype_);
    const std::int64_t rows = row_elements_ == 0 ? 0 : count_ / row_elements_;
    std::int64_t at = 0;
    for (std::int64_t r = 0; r <= rows; ++r) {
      const std::int64_t stop = r < rows ? begin_ + r * stride_bytes : size_;
      for (; at < stop; ++at) {
        if (storage_.get()[at] != kSentinel) {
          return ::testing::AssertionFailure()
                 << "byte " << at - begin_ << " (from the first element) was overwritten; row " << r
                 << " of " << rows << ", " << row_bytes << " bytes a row";
        }
      }
      at += row_bytes;
    }
    return ::testing::AssertionSuccess();
  }

 private:
  static constexpr std::int64_t kBorder = 64;
  static constexpr std::int64_t kBand = 256;  // bytes before and after
  static constexpr std::uint8_t kSentinel = 0xA5;
  static constexpr std::uint8_t kUnwritten = 0x7F;

  struct Free {
    void operator()(std::uint8_t* p) const { std::free(p); }
  };

  std::uint8_t* element(std::int64_t i) const {
    const std::int64_t at = i / row_elements_ * row_stride_ + i % row_elements_;
    return storage_.get() + begin_ + at * dtype_bytes(dtype_);
  }
  template <class T>
  T load(std::int64_t i) const {
    T value;
    std::memcpy(&value, element(i), sizeof(T));
    return value;
  }
  template <class T>
  void store(std::int64_t i, T value) {
    std::memcpy(element(i), &value, sizeof(T));
  }

  DType dtype_;
  std::vector<std::int64_t> shape_;
  std::int64_t count_ = 0;
  std::int64_t row_elements_ = 1, row_stride_ = 1;
  std::int64_t begin_ = 0, size_ = 0;
  std::unique_ptr<std::uint8_t, Free> storage_;
};

}  // namespace k25::op_test
