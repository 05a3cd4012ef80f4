#include "trainer/doctor/gemm_ceiling.h"

#include <algorithm>

#include "kernels/core/host_access.h"
#include "kernels/core/philox.h"
#include "kernels/core/stopwatch.h"
#include "kernels/gemm/gemm.h"

namespace k25::trainer {

double gemm_ceiling(Runtime& runtime, DType precision) {
  const bool gpu = runtime.device() == Device::kCuda;
  const std::int64_t size = gpu ? 8192 : 768;
  const DType dtype = gpu ? precision : DType::kFloat32;
  const auto plan = kernels::gemm_plan({.m = size,
                                        .n = size,
                                        .k = size,
                                        .transpose_b = kernels::Transpose::kYes,
                                        .dtype_ab = dtype,
                                        .dtype_d = dtype,
                                        .device = runtime.device()});
  const Bytes bytes = bytes_of(Elems{size * size}, dtype);
  const Buffer memory(Bytes{3 * bytes.n}, runtime.allocator()),
      scratch(plan.workspace_bytes, runtime.allocator());
  const auto matrix = [&](std::int64_t i) {
    return memory.view(dtype, {size, size}, Bytes{i * bytes.n});
  };
  const Philox random(1, 0, "gemm ceiling");
  for (int m = 0; m < 2; ++m) {
    fill_on_host(runtime.context(), matrix(m), [&](const Tensor& t) {
      for (std::int64_t i = 0; i < t.numel(); ++i) {
        const float x = random.uniform(static_cast<std::uint64_t>(i)) - 0.5F;
        if (dtype == DType::kBFloat16) {
          t.data<BFloat16>()[i] = BFloat16(x);
        } else {
          t.data<float>()[i] = x;
        }
      }
    });
  }
  const int batch = gpu ? 64 : 1;  // products between two waits
  double best = 0.0;
  for (int i = 0; i < 8; ++i) {
    const Stopwatch watch;
    for (int b = 0; b < batch; ++b) {
      kernels::gemm_forward(runtime.context(), plan, {matrix(0), matrix(1)}, {matrix(2)},
                            {scratch.data(), scratch.size()});
    }
    runtime.mesh().wait(runtime.context());
    const double gflop = 2.0e-9 * static_cast<double>(size * size * size) * batch;
    const double rate = gflop / watch.seconds();
    best = gpu ? rate : std::max(best, rate);  // a GPU slows down as it warms up
  }
  return best;
}

}  // namespace k25::trainer
