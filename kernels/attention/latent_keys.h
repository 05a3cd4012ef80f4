#pragma once
// Keys of latent attention: each head's own part beside a part that all heads share.
//
// Legend  N rows (tokens), H heads, P width of a head's own part, S of the shared one, E = P + S.
//         own, d_own: [N, H, P]; shared, d_shared: [N, S]; key, d_key: [N, H, E]; one dtype (fp32,
//         bf16, fp64), the last dimension dense, other strides free.
// Forward   key_nh = own_nh | shared_n.
// Backward  d_own_nh = the first P of d_key_nh; d_shared_n = sum over h of its last S, h in order;
//           both overwritten.
// Numerics  forward and d_own copy bits. d_shared is summed in fp32 (fp64), rounded once.
// Aliasing  outputs overlap no input.
// Devices   CPU.
// Source    DeepSeek-AI, "DeepSeek-V2", 2024, equations 13 to 16.

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace k25::kernels {

struct LatentKeysDesc {
  std::int64_t rows = 0, heads = 0, own_dim = 0, shared_dim = 0;
  DType dtype = DType::kFloat32;
  Device device = Device::kCpu;  ///< where it runs
};

struct LatentKeysPlan {
  LatentKeysDesc desc;
  Bytes workspace_bytes;
};

struct LatentKeysForwardIn {
  ConstTensor own_NHP, shared_NS;
};
struct LatentKeysForwardOut {
  Tensor key_NHE;
};
struct LatentKeysBackwardIn {
  ConstTensor d_key_NHE;
};
struct LatentKeysBackwardOut {
  Tensor d_own_NHP, d_shared_NS;
};

LatentKeysPlan latent_keys_plan(const LatentKeysDesc& desc);
void latent_keys_forward(Context& ctx, const LatentKeysPlan& plan, const LatentKeysForwardIn& in,
                         const LatentKeysForwardOut& out, Workspace workspace);
void latent_keys_backward(Context& ctx, const LatentKeysPlan& plan, const LatentKeysBackwardIn& in,
                          const LatentKeysBackwardOut& out, Workspace workspace);

}  // namespace k25::kernels
