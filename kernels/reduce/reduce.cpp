#include "kernels/reduce/reduce.h"

#include <atomic>
#include <functional>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/reduce/reduce_cpu.h"
#include "kernels/reduce/reduce_cuda.h"

namespace k25::kernels {
namespace {

constexpr std::int64_t kChunksPerBlock = 8;
constexpr std::int64_t kGrain = kChunk * kChunksPerBlock;

std::int64_t only_dim(const char* op, const char* name, const ConstTensor& t) {
  if (t.ndim() != 1) {
    fail(ErrorKind::kUsage, std::string(op) + ": " + name + " is " + shape_string(t.shape()) +
                                ", expected one dimension");
  }
  return t.dim(0);
}

}  // namespace

void chunk_square_sums(Context& ctx, const ConstTensor& x_n, const Tensor& sums_c) {
  const std::int64_t n = only_dim("chunk_square_sums", "x_n", x_n);
  if (n % kChunk != 0) {
    fail(ErrorKind::kUsage, "chunk_square_sums: x_n has " + std::to_string(n) +
                                " elements, not a multiple of the chunk of " +
                                std::to_string(kChunk) + "; pad the flat buffer with zeros");
  }
  const std::int64_t chunks = n / kChunk;
  const Device device = x_n.device();
  check_built_for("chunk_square_sums", device);
  check_operand("chunk_square_sums", "x_n", x_n, DType::kFloat32, {n}, Density::kContiguous,
                device);
  check_operand("chunk_square_sums", "sums_c", sums_c, DType::kFloat64, {chunks},
                Density::kContiguous, device);
  if (chunks == 0) return;
  if constexpr (kWithCuda) {
    if (device == Device::kCuda) return chunk_square_sums_cuda(ctx, x_n, sums_c);
  }
  const float* x = x_n.data<float>();
  double* sums = sums_c.data<double>();
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, square_sums_cpu, x + begin * kChunk, sums + begin, end - begin);
  };
  parallel_for(ctx.threads, chunks, kChunksPerBlock, std::ref(body));
}

void row_sums(Context& ctx, const ConstTensor& x_rn, const Tensor& sums_r) {
  const std::int64_t rows = only_dim("row_sums", "sums_r", sums_r);
  const Device device = sums_r.device();
  check_built_for("row_sums", device);
  const std::int64_t cols = x_rn.ndim() == 2 ? x_rn.dim(1) : -1;
  check_operand("row_sums", "x_rn", x_rn, DType::kFloat32, {rows, cols}, Density::kRows, device);
  check_operand("row_sums", "sums_r", sums_r, DType::kFloat64, {rows}, Density::kContiguous,
                device);
  if (rows == 0) return;
  if constexpr (kWithCuda) {
    if (device == Device::kCuda) return row_sums_cuda(ctx, x_rn, sums_r);
  }
  const float* x = x_rn.data<float>();
  double* sums = sums_r.data<double>();
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, row_sums_cpu, x + begin * x_rn.stride(0), x_rn.stride(0), cols,
                 sums + begin, end - begin);
  };
  parallel_for(ctx.threads, rows, 1, std::ref(body));
}

double add_in_order(const ConstTensor& sums_c) {
  const std::int64_t n = only_dim("add_in_order", "sums_c", sums_c);
  check_operand("add_in_order", "sums_c", sums_c, DType::kFloat64, {n}, Density::kContiguous);
  if (n == 0) return 0;
  const double* sums = sums_c.data<double>();
  double total = 0;
  for (std::int64_t c = 0; c < n; ++c) total += sums[c];
  return total;
}

void ordered_sum(Context& ctx, const ConstTensor& parts_pn, const Tensor& acc_n) {
  const std::int64_t n = only_dim("ordered_sum", "acc_n", acc_n);
  if (parts_pn.ndim() != 2) {
    fail(ErrorKind::kUsage,
         "ordered_sum: parts_pn is " + shape_string(parts_pn.shape()) + ", expected [parts, n]");
  }
  const std::int64_t num_parts = parts_pn.dim(0);
  const Device device = acc_n.device();
  check_built_for("ordered_sum", device);
  check_operand("ordered_sum", "parts_pn", parts_pn, DType::kFloat32, {num_parts, n},
                Density::kRows, device);
  check_operand("ordered_sum", "acc_n", acc_n, DType::kFloat32, {n}, Density::kContiguous, device);
  if (n == 0 || num_parts == 0) return;
  if constexpr (kWithCuda) {
    if (device == Device::kCuda) return ordered_sum_cuda(ctx, parts_pn, acc_n);
  }
  const float* parts = parts_pn.data<float>();
  float* acc = acc_n.data<float>();
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, ordered_sum_cpu, parts + begin, num_parts, parts_pn.stride(0),
                 acc + begin, end - begin);
  };
  parallel_for(ctx.threads, n, kGrain, std::ref(body));
}

void first_not_finite(Context& ctx, const ConstTensor& x_n, const Tensor& first) {
  const std::int64_t n = only_dim("first_not_finite", "x_n", x_n);
  const Device device = x_n.device();
  check_built_for("first_not_finite", device);
  check_operand("first_not_finite", "x_n", x_n, DType::kFloat32, {n}, Density::kContiguous, device);
  check_operand("first_not_finite", "first", first, DType::kInt64, {1}, Density::kContiguous,
                device);
  if constexpr (kWithCuda) {
    if (device == Device::kCuda) return first_not_finite_cuda(ctx, x_n, first);
  }
  const float* x = n == 0 ? nullptr : x_n.data<float>();
  std::atomic<std::int64_t> lowest{n};  // a minimum does not depend on who finds it first
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    if (lowest.load() < begin) return;
    const std::int64_t at =
        begin + K25_ISA_CALL(ctx.isa, first_not_finite_cpu, x + begin, end - begin);
    if (at == end) return;
    std::int64_t seen = lowest.load();
    while (at < seen && !lowest.compare_exchange_weak(seen, at)) {
    }
  };
  parallel_for(ctx.threads, n, kGrain, std::ref(body));
  first.data<std::int64_t>()[0] = lowest.load();
}

}  // namespace k25::kernels
