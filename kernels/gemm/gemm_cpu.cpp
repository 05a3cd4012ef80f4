// Eigen's packing and register kernels under our own blocking. Compiled once per instruction set
// with Eigen's namespace renamed (scripts/cmake/K25Module.cmake).
//
// D is row-major and Eigen's kernel column-major, so Eigen sees D^T = op(B)^T op(A)^T: its left
// operand ("lhs", the vectorised one) is op(B)^T and its right operand is op(A)^T.

// NOTE: GCC 12 warns about its own AVX-512 headers (GCC bug 105593); a warning after inlining is
// not silenced by a system include path.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#define EIGEN_MPL2_ONLY
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_DEFAULT_L1_CACHE_SIZE ::k25::kernels::kEigenL1CacheBytes  // decides a loop order
#include "kernels/gemm/gemm_cpu.h"

#include <Eigen/Core>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace k25::kernels::K25_ISA {
namespace {

using Index = std::ptrdiff_t;
using std::int64_t;

constexpr int flipped(int order) {
  return order == Eigen::RowMajor ? Eigen::ColMajor : Eigen::RowMajor;
}

template <class Packet, class T>
[[gnu::always_inline]] inline Packet load_widened(const T* p) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    constexpr int kSize = Eigen::internal::unpacket_traits<Packet>::size;
    std::uint32_t wide[kSize];
    for (int i = 0; i < kSize; ++i) wide[i] = static_cast<std::uint32_t>(p[i].bits) << 16;
    Packet packet;
    static_assert(sizeof(packet) == sizeof(wide));
    __builtin_memcpy(&packet, wide, sizeof(wide));
    return packet;
  } else {
    return Eigen::internal::ploadu<Packet>(p);
  }
}

/// What Eigen's packing reads: a strided matrix of T whose elements appear as Acc.
template <class T, class Acc>
class LinearReader {
 public:
  explicit LinearReader(const T* data) : data_(data) {}
  Acc operator()(Index i) const { return static_cast<Acc>(data_[i]); }
  template <class Packet>
  Packet loadPacket(Index i) const {  // the name that Eigen calls
    return load_widened<Packet>(data_ + i);
  }

 private:
  const T* data_;
};

template <class T, class Acc, int Order>
class Reader {
 public:
  using LinearMapper = LinearReader<T, Acc>;  // the name that Eigen uses

  Reader(const T* data, Index stride) : data_(data), stride_(stride) {}
  Acc operator()(Index i, Index j) const { return static_cast<Acc>(*at(i, j)); }
  LinearMapper getLinearMapper(Index i, Index j) const { return LinearMapper(at(i, j)); }
  template <class Packet>
  Packet loadPacket(Index i, Index j) const {
    return load_widened<Packet>(at(i, j));
  }

 private:
  const T* at(Index i, Index j) const {
    return data_ + (Order == Eigen::RowMajor ? i * stride_ + j : i + j * stride_);
  }

  const T* data_;
  Index stride_;
};

/// op(X)[row, 0] of a stored matrix.
template <class T>
const T* element(const void* base, Transpose transpose, int64_t stride, int64_t row, int64_t col) {
  return static_cast<const T*>(base) +
         (transpose == Transpose::kNo ? row * stride + col : col * stride + row);
}

template <class T, class Acc, int Order>
void pack_b_order(const GemmPart& p, int64_t begin, int64_t end) {
  using Traits = Eigen::internal::gebp_traits<Acc, Acc>;
  static_assert(kGemmPackCols % Traits::mr == 0);
  using Lhs = Reader<T, Acc, flipped(Order)>;
  Eigen::internal::gemm_pack_lhs<Acc, Index, Lhs, Traits::mr, Traits::LhsProgress,
                                 typename Traits::LhsPacket4Packing, flipped(Order)>
      pack;
  for (int64_t k = 0; k < p.depth; k += kGemmDepth) {
    const int64_t depth = p.depth - k < kGemmDepth ? p.depth - k : kGemmDepth;
    const T* b = element<T>(p.b, p.transpose_b, p.b_stride, k, begin);
    pack(static_cast<Acc*>(p.packed_b) + k * p.cols + begin * depth, Lhs(b, p.b_stride), depth,
         end - begin);
  }
}

template <class T, class Acc>
void pack_b(const GemmPart& p, int64_t begin, int64_t end) {
  if (p.transpose_b == Transpose::kNo) {
    pack_b_order<T, Acc, Eigen::RowMajor>(p, begin, end);
  } else {
    pack_b_order<T, Acc, Eigen::ColMajor>(p, begin, end);
  }
}

/// Eigen's layout of its right operand, from a stored [K, M]: groups of four rows of D with their
/// terms together, then single rows. Eigen's own packing walks down the terms once per group, which
/// reads every cache line four times; here each stored row is read once (weight gradients).
template <class T, class Acc>
void pack_a_stored_transposed(Acc* to, const T* a, int64_t stride, int64_t depth, int64_t rows) {
  constexpr int kGroup = 4;
  static_assert(Eigen::internal::gebp_traits<Acc, Acc>::nr == kGroup);
  const int64_t grouped = rows / kGroup * kGroup;
  for (int64_t k = 0; k < depth; ++k) {
    const T* from = a + k * stride;
    Acc* group = to + k * kGroup;
    for (int64_t i = 0; i < grouped; i += kGroup, group += depth * kGroup) {
      Acc four[kGroup];
      for (int c = 0; c < kGroup; ++c) four[c] = static_cast<Acc>(from[i + c]);
      std::memcpy(group, four, sizeof(four));
    }
  }
  for (int64_t i = grouped; i < rows; ++i) {
    for (int64_t k = 0; k < depth; ++k) to[i * depth + k] = static_cast<Acc>(a[k * stride + i]);
  }
}

/// Packs terms [k, k + depth) of rows [begin, end) of op(A).
template <class T, class Acc>
void pack_a(const GemmPart& p, Acc* to, int64_t begin, int64_t end, int64_t k, int64_t depth) {
  using Traits = Eigen::internal::gebp_traits<Acc, Acc>;
  using Rhs = Reader<T, Acc, flipped(Eigen::RowMajor)>;
  const T* a = element<T>(p.a, p.transpose_a, p.a_stride, begin, k);
  if (p.transpose_a == Transpose::kYes) {
    pack_a_stored_transposed(to, a, p.a_stride, depth, end - begin);
    return;
  }
  Eigen::internal::gemm_pack_rhs<Acc, Index, Rhs, Traits::nr, flipped(Eigen::RowMajor)> pack;
  pack(to, Rhs(a, p.a_stride), depth, end - begin);
}

template <class Acc>
void clear(Acc* d, int64_t stride, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; ++i) {
    std::memset(d + i * stride, 0, static_cast<std::size_t>(cols) * sizeof(Acc));
  }
}

/// The accumulators of rows [begin, end): D itself, or the wide copy of a bf16 D.
template <class Acc>
void add_products(const GemmPart& p, Acc* d, int64_t d_stride, int64_t begin, int64_t end,
                  int64_t slot) {
  using Traits = Eigen::internal::gebp_traits<Acc, Acc>;
  using Result =
      Eigen::internal::blas_data_mapper<Acc, Index, Eigen::ColMajor, Eigen::Unaligned, 1>;
  Eigen::internal::gebp_kernel<Acc, Acc, Index, Result, Traits::mr, Traits::nr, false, false> gebp;
  const int64_t slot_depth = p.depth < kGemmDepth ? p.depth : kGemmDepth;
  Acc* packed_a = static_cast<Acc*>(p.packed_a) + slot * kGemmRowBlock * slot_depth;
  for (int64_t k = 0; k < p.depth; k += kGemmDepth) {
    const int64_t depth = p.depth - k < kGemmDepth ? p.depth - k : kGemmDepth;
    if constexpr (std::is_same_v<Acc, float>) {
      if (p.dtype_ab == DType::kBFloat16) pack_a<BFloat16>(p, packed_a, begin, end, k, depth);
    }
    if (p.dtype_ab != DType::kBFloat16) pack_a<Acc>(p, packed_a, begin, end, k, depth);
    gebp(Result(d, d_stride), static_cast<const Acc*>(p.packed_b) + k * p.cols, packed_a, p.cols,
         depth, end - begin, Acc(1));
  }
}

template <class Acc>
void rows_in_place(const GemmPart& p, int64_t begin, int64_t end, int64_t slot) {
  Acc* d = static_cast<Acc*>(p.d) + begin * p.d_stride;
  if (p.first && p.accumulate == Accumulate::kOverwrite) {
    clear(d, p.d_stride, end - begin, p.cols);
  }
  add_products(p, d, p.d_stride, begin, end, slot);
}

void rows_bf16(const GemmPart& p, int64_t begin, int64_t end, int64_t slot) {
  BFloat16* d = static_cast<BFloat16*>(p.d) + begin * p.d_stride;
  float* wide = p.wide_d + begin * p.cols;
  if (p.first && p.accumulate == Accumulate::kOverwrite) {
    clear(wide, p.cols, end - begin, p.cols);
  } else if (p.first) {
    for (int64_t i = 0; i < end - begin; ++i) {
      for (int64_t j = 0; j < p.cols; ++j) {
        wide[i * p.cols + j] = static_cast<float>(d[i * p.d_stride + j]);
      }
    }
  }
  add_products(p, wide, p.cols, begin, end, slot);
  if (!p.last) return;
  for (int64_t i = 0; i < end - begin; ++i) {
    for (int64_t j = 0; j < p.cols; ++j) {
      d[i * p.d_stride + j] = BFloat16(wide[i * p.cols + j]);
    }
  }
}

}  // namespace

void gemm_pack_cpu(const GemmPart& part, int64_t begin, int64_t end) {
  if (part.dtype_ab == DType::kFloat64) {
    pack_b<double, double>(part, begin, end);
  } else if (part.dtype_ab == DType::kBFloat16) {
    pack_b<BFloat16, float>(part, begin, end);
  } else {
    pack_b<float, float>(part, begin, end);
  }
}

void gemm_rows_cpu(const GemmPart& part, int64_t begin, int64_t end, int64_t slot) {
  if (part.dtype_d == DType::kFloat64) {
    rows_in_place<double>(part, begin, end, slot);
  } else if (part.dtype_d == DType::kBFloat16) {
    rows_bf16(part, begin, end, slot);
  } else {
    rows_in_place<float>(part, begin, end, slot);
  }
}

}  // namespace k25::kernels::K25_ISA
