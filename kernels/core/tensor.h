#pragma once
// Tensor: a view of memory owned by somebody else (a Buffer, an Arena, a mapped file).
//
// A view has a pointer, a DType, a Device, and up to five dimensions with strides in elements.
// Copying a view copies no data. Tensor may be written through, ConstTensor may not; a Tensor
// converts to a ConstTensor. A default-constructed view is absent (`!view`): optional operands use
// it.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"

namespace k25 {

enum class Device : std::uint8_t { kCpu, kCuda };

inline constexpr int kMaxDims = 5;

/// "[4, 256, 128]" for error messages.
std::string shape_string(std::span<const std::int64_t> shape);

template <bool Const>
class BasicTensor {
 public:
  using Pointer = std::conditional_t<Const, const void*, void*>;
  template <class T>
  using Element = std::conditional_t<Const, const T, T>;

  BasicTensor() = default;

  /// A contiguous (row-major) view of `shape` elements at `data`.
  BasicTensor(Pointer data, DType dtype, std::span<const std::int64_t> shape,
              Device device = Device::kCpu)
      : data_(data), dtype_(dtype), device_(device), ndim_(static_cast<int>(shape.size())) {
    K25_CHECK(ndim_ <= kMaxDims, "a tensor has at most 5 dimensions, not " + shape_string(shape));
    std::int64_t stride = 1;
    for (int d = ndim_ - 1; d >= 0; --d) {
      K25_CHECK(shape[d] >= 0, "a dimension must not be negative: " + shape_string(shape));
      shape_[d] = shape[d];
      strides_[d] = stride;
      stride *= shape[d];
    }
  }
  BasicTensor(Pointer data, DType dtype, std::initializer_list<std::int64_t> shape,
              Device device = Device::kCpu)
      : BasicTensor(data, dtype, std::span<const std::int64_t>(shape.begin(), shape.size()),
                    device) {}

  /// Tensor -> ConstTensor.
  template <bool OtherConst>
    requires(Const && !OtherConst)
  BasicTensor(const BasicTensor<OtherConst>& o)  // NOLINT(google-explicit-constructor)
      : data_(o.data_),
        dtype_(o.dtype_),
        device_(o.device_),
        ndim_(o.ndim_),
        shape_(o.shape_),
        strides_(o.strides_) {}

  explicit operator bool() const { return data_ != nullptr; }

  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  int ndim() const { return ndim_; }
  std::int64_t dim(int d) const { return shape_[d]; }
  std::int64_t stride(int d) const { return strides_[d]; }
  std::span<const std::int64_t> shape() const {
    return {shape_.data(), static_cast<std::size_t>(ndim_)};
  }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int d = 0; d < ndim_; ++d) n *= shape_[d];
    return n;
  }
  Bytes bytes() const { return bytes_of(Elems{numel()}, dtype_); }

  Pointer raw() const { return data_; }

  /// Typed pointer to element 0; throws kUsage when T is not the view's dtype.
  template <class T>
  Element<T>* data() const {
    K25_CHECK(kDTypeOf<T> == dtype_, "tensor holds " + std::string(dtype_name(dtype_)) + ", not " +
                                         std::string(dtype_name(kDTypeOf<T>)));
    return static_cast<Element<T>*>(data_);
  }

  /// Row-major without gaps. True for a view without elements.
  bool is_contiguous() const {
    if (numel() == 0) return true;
    std::int64_t stride = 1;
    for (int d = ndim_ - 1; d >= 0; --d) {
      if (shape_[d] != 1 && strides_[d] != stride) return false;
      stride *= shape_[d];
    }
    return true;
  }

  /// The same shape and strides over other memory.
  BasicTensor at(Pointer data, Device device) const {
    BasicTensor t = *this;
    t.data_ = data;
    t.device_ = device;
    return t;
  }

  /// Elements [begin, end) along `d`; same memory.
  BasicTensor slice(int d, std::int64_t begin, std::int64_t end) const {
    K25_CHECK(d >= 0 && d < ndim_ && 0 <= begin && begin <= end && end <= shape_[d],
              "slice [" + std::to_string(begin) + ", " + std::to_string(end) + ") of dimension " +
                  std::to_string(d) + " lies outside " + shape_string(this->shape()));
    BasicTensor t = *this;
    t.data_ = offset_pointer(begin * strides_[d]);
    t.shape_[d] = end - begin;
    return t;
  }

  /// Element `index` along `d`, that dimension removed: [rows, heads, dim] -> one head's [rows,
  /// dim].
  BasicTensor select(int d, std::int64_t index) const {
    BasicTensor t = slice(d, index, index + 1);
    for (int i = d; i + 1 < ndim_; ++i) {
      t.shape_[i] = shape_[i + 1];
      t.strides_[i] = strides_[i + 1];
    }
    t.ndim_ = ndim_ - 1;
    t.shape_[t.ndim_] = 0;
    t.strides_[t.ndim_] = 0;
    return t;
  }

  /// The same elements of a contiguous view under another shape.
  BasicTensor view(std::initializer_list<std::int64_t> shape) const {
    BasicTensor t(data_, dtype_, shape, device_);
    K25_CHECK(is_contiguous(), "only a contiguous tensor can be reshaped; this view of " +
                                   shape_string(this->shape()) + " has gaps");
    K25_CHECK(t.numel() == numel(),
              "a reshape keeps the number of elements: " + shape_string(this->shape()) + " to " +
                  shape_string(t.shape()));
    return t;
  }

  /// Splits dimension `d` into (outer, inner) without moving data: q|k|v columns -> heads x dim.
  BasicTensor split_dim(int d, std::int64_t outer, std::int64_t inner) const {
    K25_CHECK(d >= 0 && d < ndim_ && ndim_ < kMaxDims && outer >= 0 && inner >= 0 &&
                  shape_[d] == outer * inner,
              "dimension " + std::to_string(d) + " of " + shape_string(shape()) +
                  " cannot be split into " + std::to_string(outer) + " x " + std::to_string(inner));
    BasicTensor t = *this;
    for (int i = ndim_; i > d + 1; --i) {
      t.shape_[i] = shape_[i - 1];
      t.strides_[i] = strides_[i - 1];
    }
    t.shape_[d] = outer;
    t.strides_[d] = strides_[d] * inner;
    t.shape_[d + 1] = inner;
    t.strides_[d + 1] = strides_[d];
    t.ndim_ = ndim_ + 1;
    return t;
  }

 private:
  template <bool>
  friend class BasicTensor;

  Pointer offset_pointer(std::int64_t elements) const {
    if (data_ == nullptr) return nullptr;  // a measuring arena's view
    using Byte = std::conditional_t<Const, const char, char>;
    return static_cast<Byte*>(data_) + elements * dtype_bytes(dtype_);
  }

  Pointer data_ = nullptr;
  DType dtype_ = DType::kFloat32;
  Device device_ = Device::kCpu;
  int ndim_ = 0;
  std::array<std::int64_t, kMaxDims> shape_{};
  std::array<std::int64_t, kMaxDims> strides_{};
};

using Tensor = BasicTensor<false>;
using ConstTensor = BasicTensor<true>;

}  // namespace k25
