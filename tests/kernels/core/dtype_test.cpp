#include "kernels/core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace k25 {
namespace {

std::uint16_t rounded(std::uint32_t float_bits) {
  return BFloat16(std::bit_cast<float>(float_bits)).bits;
}

TEST(BFloat16, EveryValueSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    BFloat16 b;
    b.bits = static_cast<std::uint16_t>(bits);
    const float wide = static_cast<float>(b);
    const BFloat16 back(wide);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(back))) << std::hex << bits;
      EXPECT_EQ(back.bits, bits | 0x0040u) << std::hex << bits;  // sign and payload, quiet
    } else {
      ASSERT_EQ(back.bits, bits) << std::hex << bits;
    }
  }
}

TEST(BFloat16, TiesGoToEven) {
  EXPECT_EQ(rounded(0x3f808000u), 0x3f80u);  // between 0x3f80 (even) and 0x3f81
  EXPECT_EQ(rounded(0x3f818000u), 0x3f82u);  // between 0x3f81 and 0x3f82 (even)
  EXPECT_EQ(rounded(0xbf808000u), 0xbf80u);
  EXPECT_EQ(rounded(0xbf818000u), 0xbf82u);
}

TEST(BFloat16, OtherValuesGoToTheNearest) {
  EXPECT_EQ(rounded(0x3f807fffu), 0x3f80u);
  EXPECT_EQ(rounded(0x3f808001u), 0x3f81u);
  EXPECT_EQ(rounded(0x3f80ffffu), 0x3f81u);
  EXPECT_EQ(rounded(0x3fffffffu), 0x4000u);  // carries into the exponent
}

TEST(BFloat16, EveryFloatBetweenTwoNeighboursGoesToTheNearerOne) {
  for (const std::uint32_t upper :
       {0x0000u, 0x0001u, 0x007fu, 0x3f80u, 0x7f7eu, 0x8000u, 0xc2c8u}) {
    for (std::uint32_t low = 0; low < 0x10000u; ++low) {
      const std::uint32_t expected = low < 0x8000u   ? upper
                                     : low > 0x8000u ? upper + 1
                                                     : upper + (upper & 1);
      ASSERT_EQ(rounded(upper << 16 | low), expected) << std::hex << upper << " " << low;
    }
  }
}

TEST(BFloat16, LargeValuesBecomeInfinity) {
  EXPECT_EQ(rounded(0x7f7fffffu), 0x7f80u);  // FLT_MAX lies nearer to the next power of two
  EXPECT_EQ(rounded(0xff7fffffu), 0xff80u);
  EXPECT_EQ(rounded(0x7f7f7fffu), 0x7f7fu);  // the largest float that stays finite
  EXPECT_EQ(rounded(0x7f7f8000u), 0x7f80u);
  EXPECT_EQ(rounded(0x7f800000u), 0x7f80u);
  EXPECT_EQ(rounded(0xff800000u), 0xff80u);
}

TEST(BFloat16, NanStaysNan) {
  // The payload of the first lies in the dropped half alone: truncation would give infinity.
  for (const std::uint32_t bits :
       {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(bits)))));
    EXPECT_EQ(rounded(bits) >> 15, bits >> 31);
  }
}

TEST(BFloat16, DenormalsAndZerosAreKept) {
  EXPECT_EQ(rounded(0x00000000u), 0x0000u);
  EXPECT_EQ(rounded(0x80000000u), 0x8000u);
  EXPECT_EQ(rounded(0x00010000u), 0x0001u);
  EXPECT_EQ(rounded(0x00008000u), 0x0000u);  // tie with zero
  EXPECT_EQ(rounded(0x00008001u), 0x0001u);
  EXPECT_EQ(rounded(0x00018000u), 0x0002u);
  EXPECT_EQ(rounded(0x007fffffu), 0x0080u);  // becomes the smallest normal
}

TEST(DType, SizesNamesAndTypes) {
  EXPECT_EQ(dtype_bytes(DType::kFloat32), 4);
  EXPECT_EQ(dtype_bytes(DType::kBFloat16), 2);
  EXPECT_EQ(dtype_bytes(DType::kFloat64), 8);
  EXPECT_EQ(dtype_bytes(DType::kInt32), 4);
  EXPECT_EQ(dtype_bytes(DType::kInt64), 8);
  EXPECT_EQ(dtype_bytes(DType::kUInt8), 1);
  EXPECT_EQ(dtype_name(DType::kFloat32), "fp32");
  EXPECT_EQ(dtype_name(DType::kBFloat16), "bf16");
  EXPECT_EQ(dtype_name(DType::kFloat64), "fp64");
  EXPECT_EQ(dtype_name(DType::kInt32), "int32");
  EXPECT_EQ(dtype_name(DType::kInt64), "int64");
  EXPECT_EQ(dtype_name(DType::kUInt8), "uint8");
  EXPECT_EQ(kDTypeOf<BFloat16>, DType::kBFloat16);
  EXPECT_EQ(kDTypeOf<std::int64_t>, DType::kInt64);
  EXPECT_EQ(bytes_of(Elems{3}, DType::kFloat64), Bytes{24});
  static_assert(sizeof(BFloat16) == 2);
}

}  // namespace
}  // namespace k25
