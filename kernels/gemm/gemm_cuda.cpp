// The product through cuBLASLt. It is column-major and D here is row-major, so cuBLASLt sees
// D^T = op(B)^T op(A)^T: its left operand is our B, its right one our A, and the row stride is the
// leading dimension.
//
// Determinism  The library may cut the sum over K into parts. Allowed is no cut (NONE), and parts
//         that are kept in fp32 in the workspace and added in their order by a second kernel
//         (COMPUTE_TYPE). Excluded are INPLACE, which adds the parts to D as they arrive, one at a
//         time but rounded to D's dtype in between, and OUTPUT_TYPE, which rounds each part to D's
//         dtype. fp32 operands use the PEDANTIC type: neither tf32 nor emulation, whatever the
//         library's environment variables say.

#include "kernels/gemm/gemm_cuda.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/core/cuda_check.h"
#include "kernels/gemm/gemm_algorithms.h"
#include "kernels/gemm/round_rows_cuda.h"

namespace k25::kernels {

struct PreparedGemm {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  cublasLtMatmulAlgo_t algorithm;
};

namespace {

constexpr std::uint32_t kReductions =
    CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
constexpr std::int64_t kLargestAlignment = 16;
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(GemmAlgorithm::words));

/// The layout calls take their descriptors without const.
template <class Opaque>
Opaque* handle(const Opaque& opaque) {
  return const_cast<Opaque*>(&opaque);
}

cudaDataType_t cuda_type(DType t) { return t == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F; }

/// Of a view with dense rows; the stride of a single row does not count.
std::int64_t alignment_of(const ConstTensor& t) {
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(t.raw()) | kLargestAlignment;
  if (t.dim(0) > 1) bits |= static_cast<std::uint64_t>(t.stride(0) * dtype_bytes(t.dtype()));
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

/// A stride for rows of `cols` elements that is aligned to `alignment` bytes and, below the
/// largest, to no more. The algorithm is chosen with it, so that it does not depend on the true
/// one.
std::int64_t canonical_stride(std::int64_t cols, DType dtype, std::int64_t alignment) {
  const std::int64_t unit = alignment / dtype_bytes(dtype);
  const std::int64_t units = (cols + unit - 1) / unit;
  return (alignment < kLargestAlignment && units % 2 == 0 ? units + 1 : units) * unit;
}

GemmAlgorithmKey key_of(const GemmDesc& d, const GemmIn& in, const GemmOut& out) {
  return {.m = d.m,
          .n = d.n,
          .k = d.k,
          .transpose_a = d.transpose_a,
          .transpose_b = d.transpose_b,
          .dtype_ab = d.dtype_ab,
          .dtype_d = d.dtype_d,
          .accumulate = d.accumulate,
          .alignment = {alignment_of(in.a), alignment_of(in.b), alignment_of(out.d)}};
}

struct Stored {
  std::int64_t rows, cols;
};
Stored stored_a(const GemmAlgorithmKey& key) {
  return key.transpose_a == Transpose::kYes ? Stored{key.k, key.m} : Stored{key.m, key.k};
}
Stored stored_b(const GemmAlgorithmKey& key) {
  return key.transpose_b == Transpose::kYes ? Stored{key.n, key.k} : Stored{key.k, key.n};
}

using Strides = std::array<std::int64_t, 3>;

Strides canonical_strides(const GemmAlgorithmKey& key) {
  return {canonical_stride(stored_a(key).cols, key.dtype_ab, key.alignment[0]),
          canonical_stride(stored_b(key).cols, key.dtype_ab, key.alignment[1]),
          canonical_stride(key.n, key.dtype_d, key.alignment[2])};
}

void set_transpose(PreparedGemm& p, cublasLtMatmulDescAttributes_t which, Transpose transpose) {
  const cublasOperation_t op = transpose == Transpose::kYes ? CUBLAS_OP_T : CUBLAS_OP_N;
  K25_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(&p.product, which, &op, sizeof(op)));
}

/// Everything but the algorithm.
PreparedGemm describe(const GemmAlgorithmKey& key, const Strides& strides) {
  PreparedGemm p{};
  const auto compute =
      key.dtype_ab == DType::kFloat32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
  K25_CUBLAS_CHECK(cublasLtMatmulDescInit(&p.product, compute, CUDA_R_32F));
  set_transpose(p, CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b);
  set_transpose(p, CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a);
  const auto layout = [](cublasLtMatrixLayoutOpaque_t& to, DType dtype, Stored s,
                         std::int64_t stride) {
    K25_CUBLAS_CHECK(cublasLtMatrixLayoutInit(&to, cuda_type(dtype),
                                              static_cast<std::uint64_t>(s.cols),
                                              static_cast<std::uint64_t>(s.rows), stride));
  };
  layout(p.a, key.dtype_ab, stored_b(key), strides[1]);
  layout(p.b, key.dtype_ab, stored_a(key), strides[0]);
  layout(p.d, key.dtype_d, {key.m, key.n}, strides[2]);
  return p;
}

std::uint32_t reduction_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::uint32_t scheme = ~0u;
  std::size_t written = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoConfigGetAttribute(
      &algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme), &written);
  return status == CUBLAS_STATUS_SUCCESS ? scheme : ~0u;
}

/// Fits the workspace and the rule on reductions, as far as the library tells.
bool allowed(cublasLtHandle_t library, const PreparedGemm& p,
             const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(library, handle(p.product), handle(p.a), handle(p.b), handle(p.d),
                              handle(p.d), &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<std::size_t>(kGemmLibraryBytes) &&
         (reduction_of(algorithm) & ~kReductions) == 0;
}

void set_preference(cublasLtMatmulPreference_t preference,
                    cublasLtMatmulPreferenceAttributes_t which, std::uint32_t value) {
  K25_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof(value)));
}

/// The first allowed algorithm the heuristic offers.
cublasLtMatmulAlgo_t choose(cublasLtHandle_t library, const GemmAlgorithmKey& key) {
  const PreparedGemm p = describe(key, canonical_strides(key));
  cublasLtMatmulPreferenceOpaque_t preference{};
  K25_CUBLAS_CHECK(cublasLtMatmulPreferenceInit(&preference));
  const auto bytes = static_cast<std::uint64_t>(kGemmLibraryBytes);
  K25_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
      &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
  set_preference(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductions);
  const auto alignment = [&](std::size_t i) {
    return static_cast<std::uint32_t>(key.alignment[i]);
  };
  set_preference(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(1));
  set_preference(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(0));
  set_preference(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(2));
  set_preference(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(2));

  constexpr int kOffers = 8;
  cublasLtMatmulHeuristicResult_t offers[kOffers] = {};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      library, handle(p.product), handle(p.a), handle(p.b), handle(p.d), handle(p.d), &preference,
      kOffers, offers, &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) K25_CUBLAS_CHECK(status);
  for (int i = 0; i < count; ++i) {
    if (offers[i].state == CUBLAS_STATUS_SUCCESS && allowed(library, p, offers[i].algo)) {
      return offers[i].algo;
    }
  }
  fail(ErrorKind::kUsage, "gemm: cuBLASLt has no deterministic algorithm for " +
                              gemm_algorithm_string(key, {cublasLtGetVersion(), {}}) +
                              " on this GPU; rows that are 16-byte aligned have most");
}

}  // namespace

/// The private side of GemmAlgorithms.
class GemmTableAccess {
 public:
  GemmTableAccess(GemmAlgorithms& table, cublasLtHandle_t library)
      : table_(table), library_(library) {}

  const PreparedGemm& prepared(const GemmAlgorithmKey& key, const Strides& strides) {
    const auto found = table_.prepared_.find({key, strides});
    if (found != table_.prepared_.end()) return *found->second;
    auto fresh = std::make_shared<PreparedGemm>(describe(key, strides));
    fresh->algorithm = algorithm(key, *fresh);
    return *table_.prepared_.emplace(std::pair{key, strides}, std::move(fresh)).first->second;
  }

 private:
  cublasLtMatmulAlgo_t algorithm(const GemmAlgorithmKey& key, const PreparedGemm& p) {
    cublasLtMatmulAlgo_t chosen{};
    const auto stored = table_.algorithms_.find(key);
    if (stored == table_.algorithms_.end()) {
      chosen = choose(library_, key);
      GemmAlgorithm entry{.library = cublasLtGetVersion()};
      std::memcpy(entry.words.data(), &chosen, sizeof(chosen));
      table_.algorithms_.emplace(key, entry);
      return chosen;
    }
    const std::string name = gemm_algorithm_string(key, stored->second);
    if (stored->second.library != cublasLtGetVersion()) {
      fail(ErrorKind::kUsage, "stored GEMM algorithm '" + name + "': this is cuBLASLt " +
                                  std::to_string(cublasLtGetVersion()) +
                                  "; use the version that stored it, or remove the stored "
                                  "algorithms, and they are chosen anew");
    }
    std::memcpy(&chosen, stored->second.words.data(), sizeof(chosen));
    if (!allowed(library_, p, chosen)) {
      fail(ErrorKind::kUsage, "stored GEMM algorithm '" + name +
                                  "': cuBLASLt refuses it on this GPU; remove the stored "
                                  "algorithms, and they are chosen anew");
    }
    return chosen;
  }

  GemmAlgorithms& table_;
  cublasLtHandle_t library_;
};

namespace {

std::int64_t stride_of(const ConstTensor& t, std::int64_t canonical) {
  return t.dim(0) > 1 ? t.stride(0) : canonical;
}

void multiply(const Context& ctx, const GemmDesc& d, const GemmIn& in, const GemmOut& out,
              void* scratch) {
  const GemmAlgorithmKey key = key_of(d, in, out);
  const Strides canonical = canonical_strides(key);
  const PreparedGemm& p =
      GemmTableAccess(*ctx.gemm_algorithms, ctx.cublaslt)
          .prepared(key, {stride_of(in.a, canonical[0]), stride_of(in.b, canonical[1]),
                          stride_of(out.d, canonical[2])});
  const std::uintptr_t border = kGemmLibraryAlignment;
  void* const aligned = reinterpret_cast<void*>(
      (reinterpret_cast<std::uintptr_t>(scratch) + border - 1) / border * border);
  const float alpha = 1.0f;
  const float beta = d.accumulate == Accumulate::kAdd ? 1.0f : 0.0f;
  K25_CUBLAS_CHECK(cublasLtMatmul(ctx.cublaslt, handle(p.product), &alpha, in.b.raw(), handle(p.a),
                                  in.a.raw(), handle(p.b), &beta, out.d.raw(), handle(p.d),
                                  out.d.raw(), handle(p.d), &p.algorithm, aligned,
                                  static_cast<std::size_t>(kGemmLibraryBytes), ctx.stream));
}

/// A bf16 D of fp32 operands.
void multiply_widened(const Context& ctx, const GemmDesc& d, const GemmIn& in, const GemmOut& out,
                      char* scratch) {
  for (std::int64_t j = 0; j < d.n; j += kGemmWideCols) {
    for (std::int64_t i = 0; i < d.m; i += kGemmWideRows) {
      GemmDesc part = d;
      part.m = std::min(kGemmWideRows, d.m - i);
      part.n = std::min(kGemmWideCols, d.n - j);
      part.dtype_d = DType::kFloat32;
      part.accumulate = Accumulate::kOverwrite;
      const Tensor wide(scratch + kGemmCudaBytes, DType::kFloat32, {part.m, part.n}, Device::kCuda);
      multiply(ctx, part,
               {in.a.slice(d.transpose_a == Transpose::kYes ? 1 : 0, i, i + part.m),
                in.b.slice(d.transpose_b == Transpose::kYes ? 0 : 1, j, j + part.n)},
               {wide}, scratch);
      round_rows_cuda(ctx, wide, out.d.slice(0, i, i + part.m).slice(1, j, j + part.n),
                      d.accumulate);
    }
  }
}

/// The sum over no terms.
void write_zeros(const Context& ctx, const Tensor& d) {
  const std::int64_t width = d.dim(1) * dtype_bytes(d.dtype());
  const std::int64_t pitch = std::max(width, d.stride(0) * dtype_bytes(d.dtype()));
  K25_CUDA_CHECK(cudaMemset2DAsync(d.raw(), static_cast<std::size_t>(pitch), 0,
                                   static_cast<std::size_t>(width),
                                   static_cast<std::size_t>(d.dim(0)), ctx.stream));
}

}  // namespace

void gemm_forward_cuda(const Context& ctx, const GemmDesc& d, const GemmIn& in, const GemmOut& out,
                       Workspace workspace) {
  if (d.k == 0) {
    if (d.accumulate == Accumulate::kOverwrite) write_zeros(ctx, out.d);
    return;
  }
  K25_CHECK(ctx.cublaslt != nullptr && ctx.gemm_algorithms != nullptr,
            "gemm: a product on the GPU needs Context::cublaslt (CudaDevice::attach) and "
            "Context::gemm_algorithms (a table the caller owns)");
  char* const scratch = static_cast<char*>(workspace.data);
  if (gemm_is_widened(d)) return multiply_widened(ctx, d, in, out, scratch);
  multiply(ctx, d, in, out, scratch);
}

}  // namespace k25::kernels
