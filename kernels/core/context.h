#pragma once
// What every op call receives: where it runs, and scratch memory the caller planned.

#include "kernels/core/cuda_fwd.h"
#include "kernels/core/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/core/thread_pool.h"

namespace k25::kernels {
class GemmAlgorithms;    // kernels/gemm/gemm_algorithms.h
class AttentionEngines;  // kernels/attention/attention_engines.h
}  // namespace k25::kernels

namespace k25 {

class Profiler;  // kernels/core/profiler.h

/// Owned by the caller, passed to every op by reference. Holds no memory.
struct Context {
  CpuIsa isa = CpuIsa::kV1;       ///< which build of the CPU kernels runs
  ThreadPool* threads = nullptr;  ///< null: the calling thread alone. Results never depend on it.

  Profiler* profiler = nullptr;  ///< set only during steps that are profiled

  // CUDA only (kernels/core/device.h owns them).
  cudaStream_t stream = nullptr;  ///< ops enqueue here and never synchronise
  cublasLtHandle_t cublaslt = nullptr;
  cudnnHandle_t cudnn = nullptr;                       ///< null in a build without cuDNN
  int num_sms = 0;                                     ///< streaming multiprocessors of the device
  kernels::GemmAlgorithms* gemm_algorithms = nullptr;  ///< the caller's; every op with a GEMM asks
  kernels::AttentionEngines* attention_engines = nullptr;  ///< the caller's; null: no cuDNN
};

/// Scratch of at least the plan's workspace_bytes, 64-byte aligned, free again when the op returns.
struct Workspace {
  void* data = nullptr;
  Bytes size{};
};

}  // namespace k25
