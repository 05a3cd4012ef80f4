#include "kernels/gemm/gemm.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "kernels/core/buffer.h"
#include "kernels/core/operand.h"
#include "kernels/gemm/gemm_cpu.h"
#include "kernels/gemm/gemm_cuda.h"

namespace k25::kernels {
namespace {

DType accumulator(DType ab) { return ab == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

std::int64_t blocks(std::int64_t n, std::int64_t block) { return (n + block - 1) / block; }

/// Where each scratch area starts in the workspace, in bytes.
struct Layout {
  std::int64_t packed_b = 0, packed_a = 0, wide_d = 0, size = 0;
};

Layout layout(const GemmDesc& d) {
  if (d.m == 0 || d.n == 0 || d.k == 0) return {};
  const std::int64_t acc = dtype_bytes(accumulator(d.dtype_ab));
  const std::int64_t cols = std::min(d.n, kGemmColSpan);
  const std::int64_t rows = std::min(d.m, kGemmRowSpan);
  Layout at;
  at.packed_a = align_up(cols * std::min(d.k, kGemmDepthSpan) * acc);
  at.wide_d = at.packed_a + align_up(blocks(rows, kGemmRowBlock) * kGemmRowBlock *
                                     std::min(d.k, kGemmDepth) * acc);
  at.size = at.wide_d + (d.dtype_d == DType::kBFloat16 ? align_up(rows * cols * 4) : 0);
  return at;
}

std::string operand_text(const char* name, const ConstTensor& t) {
  return std::string("gemm: ") + name + " is " + std::string(dtype_name(t.dtype())) + " " +
         shape_string(t.shape());
}

/// Of the scratch on the device the product runs on.
std::int64_t workspace_size(const GemmDesc& d) {
  if (d.device == Device::kCpu || d.m == 0 || d.n == 0 || d.k == 0) return layout(d).size;
  if (!gemm_is_widened(d)) return kGemmCudaBytes;
  return kGemmCudaBytes + std::min(d.m, kGemmWideRows) * std::min(d.n, kGemmWideCols) * 4;
}

void check_operand(const char* name, const ConstTensor& t, DType dtype, std::int64_t rows,
                   std::int64_t cols, Device device) {
  if (t) check_device("gemm", name, t.device(), device);
  K25_CHECK(t.ndim() == 2 && t.dtype() == dtype && t.dim(0) == rows && t.dim(1) == cols,
            operand_text(name, t) + ", the plan expects " + std::string(dtype_name(dtype)) + " [" +
                std::to_string(rows) + ", " + std::to_string(cols) + "]");
  K25_CHECK(cols <= 1 || t.stride(1) == 1,
            operand_text(name, t) + " with stride " + std::to_string(t.stride(1)) +
                " in its last dimension; it must be dense (stride 1)");
  K25_CHECK(t || rows * cols == 0, operand_text(name, t) + " without memory (null pointer)");
}

void check_call(const GemmDesc& d, const GemmIn& in, const GemmOut& out, Workspace workspace,
                std::int64_t planned) {
  const bool ta = d.transpose_a == Transpose::kYes;
  const bool tb = d.transpose_b == Transpose::kYes;
  check_operand("A", in.a, d.dtype_ab, ta ? d.k : d.m, ta ? d.m : d.k, d.device);
  check_operand("B", in.b, d.dtype_ab, tb ? d.n : d.k, tb ? d.k : d.n, d.device);
  check_operand("D", out.d, d.dtype_d, d.m, d.n, d.device);
  K25_CHECK(!out.d || (out.d.raw() != in.a.raw() && out.d.raw() != in.b.raw()),
            "gemm: D starts where an operand starts; D must not overlap A or B");
  K25_CHECK(workspace.size.n >= planned && (planned == 0 || workspace.data != nullptr),
            "gemm: the workspace has " + std::to_string(workspace.size.n) +
                " bytes, the plan needs " + std::to_string(planned));
  K25_CHECK(reinterpret_cast<std::uintptr_t>(workspace.data) % kAlignment == 0,
            "gemm: the workspace must be aligned to " + std::to_string(kAlignment) + " bytes");
}

/// What the bodies of parallel_for see. They capture one pointer, so that std::function allocates
/// nothing.
struct Call {
  GemmPart part;
  CpuIsa isa = CpuIsa::kV1;
  bool slots = false;  ///< each row block packs into its own slot, because threads share the part
};

void run_part(ThreadPool* threads, const Call& call) {
  const Call* c = &call;
  parallel_for(threads, blocks(c->part.cols, kGemmPackCols), 1,
               [c](std::int64_t begin, std::int64_t end) {
                 const std::int64_t last = std::min(end * kGemmPackCols, c->part.cols);
                 K25_ISA_CALL(c->isa, gemm_pack_cpu, c->part, begin * kGemmPackCols, last);
               });
  parallel_for(threads, blocks(c->part.rows, kGemmRowBlock), 1,
               [c](std::int64_t block, std::int64_t) {
                 const std::int64_t begin = block * kGemmRowBlock;
                 const std::int64_t end = std::min(begin + kGemmRowBlock, c->part.rows);
                 K25_ISA_CALL(c->isa, gemm_rows_cpu, c->part, begin, end, c->slots ? block : 0);
               });
}

template <class Pointer>
Pointer advance(Pointer base, std::int64_t elements, DType dtype) {
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  return static_cast<Byte*>(base) + elements * dtype_bytes(dtype);
}

/// Narrows `p` to rows from i, columns from j, terms from k.
GemmPart part_at(GemmPart p, std::int64_t i, std::int64_t j, std::int64_t k) {
  const bool ta = p.transpose_a == Transpose::kYes;
  const bool tb = p.transpose_b == Transpose::kYes;
  p.a = advance(p.a, ta ? k * p.a_stride + i : i * p.a_stride + k, p.dtype_ab);
  p.b = advance(p.b, tb ? j * p.b_stride + k : k * p.b_stride + j, p.dtype_ab);
  p.d = advance(p.d, i * p.d_stride + j, p.dtype_d);
  p.first = k == 0;
  p.last = k + kGemmDepthSpan >= p.depth;
  p.rows = std::min(p.rows - i, kGemmRowSpan);
  p.cols = std::min(p.cols - j, kGemmColSpan);
  p.depth = std::min(p.depth - k, kGemmDepthSpan);
  return p;
}

/// The sum over no terms.
void write_zeros(const GemmDesc& d, const Tensor& out) {
  const std::size_t row_bytes = static_cast<std::size_t>(d.n * dtype_bytes(d.dtype_d));
  for (std::int64_t i = 0; i < d.m; ++i) {
    std::memset(advance(out.raw(), i * out.stride(0), d.dtype_d), 0, row_bytes);
  }
}

}  // namespace

GemmPlan gemm_plan(const GemmDesc& desc) {
  K25_CHECK(desc.m >= 0 && desc.n >= 0 && desc.k >= 0,
            "gemm: sizes must not be negative, got m=" + std::to_string(desc.m) +
                " n=" + std::to_string(desc.n) + " k=" + std::to_string(desc.k));
  const bool single = desc.dtype_ab == DType::kFloat32 || desc.dtype_ab == DType::kBFloat16;
  const bool to_single = desc.dtype_d == DType::kFloat32 || desc.dtype_d == DType::kBFloat16;
  K25_CHECK((single && to_single) ||
                (desc.dtype_ab == DType::kFloat64 && desc.dtype_d == DType::kFloat64),
            "gemm: no product of " + std::string(dtype_name(desc.dtype_ab)) + " operands into " +
                std::string(dtype_name(desc.dtype_d)) +
                "; fp32 and bf16 operands give fp32 or bf16, fp64 gives fp64");
  K25_CHECK(desc.device == Device::kCpu || desc.dtype_ab != DType::kFloat64,
            "gemm: fp64 runs on the CPU only; use fp32 or bf16 on the GPU");
  return {desc, Bytes{workspace_size(desc)}};
}

void gemm_forward(Context& ctx, const GemmPlan& plan, const GemmIn& in, const GemmOut& out,
                  Workspace workspace) {
  const GemmDesc& d = plan.desc;
  check_call(d, in, out, workspace, workspace_size(d));
  if (d.m == 0 || d.n == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return gemm_forward_cuda(ctx, d, in, out, workspace);
  }
  if (d.k == 0) {
    if (d.accumulate == Accumulate::kOverwrite) write_zeros(d, out.d);
    return;
  }

  const Layout at = layout(d);
  char* scratch = static_cast<char*>(workspace.data);
  GemmPart whole;
  whole.a = in.a.raw();
  whole.b = in.b.raw();
  whole.d = out.d.raw();
  whole.a_stride = in.a.stride(0);
  whole.b_stride = in.b.stride(0);
  whole.d_stride = out.d.stride(0);
  whole.transpose_a = d.transpose_a;
  whole.transpose_b = d.transpose_b;
  whole.dtype_ab = d.dtype_ab;
  whole.dtype_d = d.dtype_d;
  whole.accumulate = d.accumulate;
  whole.rows = d.m;
  whole.cols = d.n;
  whole.depth = d.k;
  whole.packed_b = scratch + at.packed_b;
  whole.packed_a = scratch + at.packed_a;
  if (d.dtype_d == DType::kBFloat16) whole.wide_d = reinterpret_cast<float*>(scratch + at.wide_d);

  Call call{.part = {}, .isa = ctx.isa, .slots = ctx.threads && ctx.threads->num_threads() > 1};
  for (std::int64_t j = 0; j < d.n; j += kGemmColSpan) {
    for (std::int64_t i = 0; i < d.m; i += kGemmRowSpan) {
      for (std::int64_t k = 0; k < d.k; k += kGemmDepthSpan) {
        call.part = part_at(whole, i, j, k);
        run_part(ctx.threads, call);
      }
    }
  }
}

}  // namespace k25::kernels
