#pragma once
// Element types. Precision is a run-time DType; hyper-parameters are float or double, never a
// DType.

#include <bit>
#include <cstdint>
#include <string_view>

namespace k25 {

enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat64, kInt32, kInt64, kUInt8 };

/// Counts that must never be confused: a copy or collective takes Bytes, never Elems.
struct Bytes {
  std::int64_t n = 0;
  friend constexpr bool operator==(Bytes, Bytes) = default;
};
struct Elems {
  std::int64_t n = 0;
  friend constexpr bool operator==(Elems, Elems) = default;
};

/// Brain float: the upper half of an IEEE float. Storage only; arithmetic is done in float.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  /// Round to nearest even; NaN stays NaN (quiet), overflow becomes infinity.
  constexpr explicit BFloat16(float value) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<std::uint16_t>((u >> 16) | 0x0040u);
    } else {
      bits = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

constexpr std::int64_t dtype_bytes(DType t) {
  switch (t) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
      return 2;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kUInt8:
      return 1;
  }
  return 0;
}

constexpr Bytes bytes_of(Elems count, DType t) { return Bytes{count.n * dtype_bytes(t)}; }

constexpr std::string_view dtype_name(DType t) {
  switch (t) {
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat64:
      return "fp64";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUInt8:
      return "uint8";
  }
  return "?";
}

template <class T>
inline constexpr DType kDTypeOf = [] {
  static_assert(sizeof(T) == 0, "no DType for this C++ type");
  return DType::kUInt8;
}();
template <>
inline constexpr DType kDTypeOf<float> = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBFloat16;
template <>
inline constexpr DType kDTypeOf<double> = DType::kFloat64;
template <>
inline constexpr DType kDTypeOf<std::int32_t> = DType::kInt32;
template <>
inline constexpr DType kDTypeOf<std::int64_t> = DType::kInt64;
template <>
inline constexpr DType kDTypeOf<std::uint8_t> = DType::kUInt8;

}  // namespace k25
