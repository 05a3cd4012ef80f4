#include "kernels/attention/latent_keys.h"

#include <functional>
#include <string>

#include "kernels/attention/latent_keys_cpu.h"
#include "kernels/core/operand.h"

namespace k25::kernels {
namespace {

constexpr std::string_view kOp = "latent_keys";
constexpr std::int64_t kRowGrain = 32;

void check_parts(const LatentKeysDesc& d, const ConstTensor& own, const ConstTensor& shared,
                 const ConstTensor& key) {
  const std::int64_t width = d.own_dim + d.shared_dim;
  check_operand(kOp, "own_NHP", own, d.dtype, {d.rows, d.heads, d.own_dim}, Density::kRows);
  check_operand(kOp, "shared_NS", shared, d.dtype, {d.rows, d.shared_dim}, Density::kRows);
  check_operand(kOp, "key_NHE", key, d.dtype, {d.rows, d.heads, width}, Density::kRows);
}

template <class T>
void forward_typed(Context& ctx, const LatentKeysDesc& d, const LatentKeysForwardIn& in,
                   const LatentKeysForwardOut& out) {
  const LatentKeysForwardArgs<T> args{d.heads,
                                      d.own_dim,
                                      d.shared_dim,
                                      strided_rows<T>(in.own_NHP),
                                      in.shared_NS.data<T>(),
                                      in.shared_NS.stride(0),
                                      strided_rows<T>(out.key_NHE)};
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, latent_keys_forward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.rows, kRowGrain, std::ref(body));
}

template <class T>
void backward_typed(Context& ctx, const LatentKeysDesc& d, const LatentKeysBackwardIn& in,
                    const LatentKeysBackwardOut& out) {
  const LatentKeysBackwardArgs<T> args{d.heads,
                                       d.own_dim,
                                       d.shared_dim,
                                       strided_rows<T>(in.d_key_NHE),
                                       strided_rows<T>(out.d_own_NHP),
                                       out.d_shared_NS.data<T>(),
                                       out.d_shared_NS.stride(0)};
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    K25_ISA_CALL(ctx.isa, latent_keys_backward_cpu, args, begin, end);
  };
  parallel_for(ctx.threads, d.rows, kRowGrain, std::ref(body));
}

}  // namespace

LatentKeysPlan latent_keys_plan(const LatentKeysDesc& d) {
  K25_CHECK(d.rows >= 0 && d.heads > 0 && d.own_dim > 0 && d.shared_dim > 0,
            "latent_keys: rows " + std::to_string(d.rows) + " must not be negative, heads " +
                std::to_string(d.heads) + ", own_dim " + std::to_string(d.own_dim) +
                " and shared_dim " + std::to_string(d.shared_dim) + " must be positive");
  check_float_dtype(kOp, d.dtype);
  K25_CHECK(d.device == Device::kCpu,
            "latent_keys: planned for the GPU, but it runs on the CPU only; plan it for the CPU");
  return {.desc = d, .workspace_bytes = Bytes{0}};
}

void latent_keys_forward(Context& ctx, const LatentKeysPlan& plan, const LatentKeysForwardIn& in,
                         const LatentKeysForwardOut& out, Workspace /*workspace*/) {
  const LatentKeysDesc& d = plan.desc;
  check_parts(d, in.own_NHP, in.shared_NS, out.key_NHE);
  if (d.rows == 0) return;
  switch (d.dtype) {
    case DType::kFloat32:
      return forward_typed<float>(ctx, d, in, out);
    case DType::kBFloat16:
      return forward_typed<BFloat16>(ctx, d, in, out);
    default:
      return forward_typed<double>(ctx, d, in, out);
  }
}

void latent_keys_backward(Context& ctx, const LatentKeysPlan& plan, const LatentKeysBackwardIn& in,
                          const LatentKeysBackwardOut& out, Workspace /*workspace*/) {
  const LatentKeysDesc& d = plan.desc;
  check_parts(d, out.d_own_NHP, out.d_shared_NS, in.d_key_NHE);
  if (d.rows == 0) return;
  switch (d.dtype) {
    case DType::kFloat32:
      return backward_typed<float>(ctx, d, in, out);
    case DType::kBFloat16:
      return backward_typed<BFloat16>(ctx, d, in, out);
    default:
      return backward_typed<double>(ctx, d, in, out);
  }
}

}  // namespace k25::kernels
