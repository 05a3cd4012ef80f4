#include "kernels/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/core/operand.h"
#include "kernels/rope/rope_cpu.h"
#include "kernels/rope/rope_cuda.h"

namespace k25::kernels {
namespace {

constexpr std::int64_t kGrainElements = 16384;  // of x, for one piece of the work

void check_table(const RopeDesc& d, const ConstTensor& table, Device device) {
  check_operand("rope", "table", table, accumulator_dtype(d.dtype), {d.max_position, d.head_dim},
                Density::kRows, device);
}

void check_call(const RopeDesc& d, const RopeIn& in, const RopeOut& out) {
  check_operand("rope", "x", in.x_NHE, d.dtype, {d.rows, d.heads, d.head_dim}, Density::kRows,
                d.device);
  check_operand("rope", "y", out.y_NHE, d.dtype, {d.rows, d.heads, d.head_dim}, Density::kRows,
                d.device);
  check_operand("rope", "position", in.position_N, DType::kInt32, {d.rows}, Density::kContiguous,
                d.device);
  check_table(d, in.table, d.device);
  if (d.device == Device::kCpu) rope_check_positions(d, in.position_N);
}

/// What the body of parallel_for sees. It captures one pointer, so that std::function allocates
/// nothing.
template <class T, class A>
struct Call {
  RopeArgs<T, A> args;
  CpuIsa isa;
};

template <class T, class A>
void rotate_typed(Context& ctx, const RopeDesc& d, const RopeIn& in, const RopeOut& out,
                  A direction) {
  Call<T, A> call{{}, ctx.isa};
  RopeArgs<T, A>& args = call.args;
  args.heads = d.heads;
  args.head_dim = d.head_dim;
  args.x = in.x_NHE.data<T>();
  args.x_row_stride = in.x_NHE.stride(0);
  args.x_head_stride = in.x_NHE.stride(1);
  args.y = out.y_NHE.data<T>();
  args.y_row_stride = out.y_NHE.stride(0);
  args.y_head_stride = out.y_NHE.stride(1);
  args.position = in.position_N.data<std::int32_t>();
  args.table = in.table.data<A>();
  args.table_stride = in.table.stride(0);
  args.direction = direction;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainElements / (d.heads * d.head_dim));
  const auto* const c = &call;
  parallel_for(ctx.threads, d.rows, grain, [c](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(c->isa, rope_cpu, c->args, begin, end);
  });
}

void rotate(Context& ctx, const RopeDesc& d, const RopeIn& in, const RopeOut& out, int direction) {
  check_call(d, in, out);
  if (d.rows == 0 || d.heads == 0) return;
  if constexpr (kWithCuda) {
    if (d.device == Device::kCuda) return rope_cuda(ctx, d, in, out, static_cast<float>(direction));
  }
  switch (d.dtype) {
    case DType::kFloat64:
      return rotate_typed<double, double>(ctx, d, in, out, direction);
    case DType::kBFloat16:
      return rotate_typed<BFloat16, float>(ctx, d, in, out, static_cast<float>(direction));
    default:
      return rotate_typed<float, float>(ctx, d, in, out, static_cast<float>(direction));
  }
}

template <class A>
void fill_typed(const RopeDesc& d, const Tensor& table) {
  const std::int64_t half = d.head_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency =
        std::pow(d.theta, -2.0 * static_cast<double>(i) / static_cast<double>(d.head_dim));
    for (std::int64_t p = 0; p < d.max_position; ++p) {
      A* const row = table.data<A>() + p * table.stride(0);
      const double angle = static_cast<double>(p) * frequency;
      row[i] = static_cast<A>(std::cos(angle));
      row[half + i] = static_cast<A>(std::sin(angle));
    }
  }
}

}  // namespace

RopePlan rope_plan(const RopeDesc& d) {
  K25_CHECK(d.rows >= 0 && d.heads >= 0, "rope: rows " + std::to_string(d.rows) + " and heads " +
                                             std::to_string(d.heads) + " must not be negative");
  K25_CHECK(d.head_dim > 0 && d.head_dim % 2 == 0,
            "rope: head_dim " + std::to_string(d.head_dim) + " must be positive and even");
  K25_CHECK(d.max_position >= 0 && d.max_position <= INT32_MAX,
            "rope: max_position " + std::to_string(d.max_position) + " must be in [0, 2^31)");
  K25_CHECK(std::isfinite(d.theta) && d.theta > 0,
            "rope: theta " + std::to_string(d.theta) + " must be positive");
  check_float_dtype("rope", d.dtype, d.device);
  return {d, Bytes{0}};
}

void rope_fill_table(const RopeDesc& desc, const Tensor& table) {
  rope_plan(desc);
  check_table(desc, table, Device::kCpu);
  if (desc.max_position == 0) return;
  if (desc.dtype == DType::kFloat64) return fill_typed<double>(desc, table);
  fill_typed<float>(desc, table);
}

void rope_check_positions(const RopeDesc& desc, const ConstTensor& host_position_N) {
  check_operand("rope", "position", host_position_N, DType::kInt32, {desc.rows},
                Density::kContiguous);
  if (desc.rows == 0) return;
  const std::int32_t* const position = host_position_N.data<std::int32_t>();
  for (std::int64_t n = 0; n < desc.rows; ++n) {
    if (position[n] < 0 || position[n] >= desc.max_position) {
      fail(ErrorKind::kUsage, "rope: row " + std::to_string(n) + " has position " +
                                  std::to_string(position[n]) + ", the table holds [0, " +
                                  std::to_string(desc.max_position) + ")");
    }
  }
}

void rope_forward(Context& ctx, const RopePlan& plan, const RopeIn& in, const RopeOut& out,
                  Workspace /*workspace*/) {
  rotate(ctx, plan.desc, in, out, 1);
}

void rope_backward(Context& ctx, const RopePlan& plan, const RopeIn& in, const RopeOut& out,
                   Workspace /*workspace*/) {
  rotate(ctx, plan.desc, in, out, -1);
}

}  // namespace k25::kernels
