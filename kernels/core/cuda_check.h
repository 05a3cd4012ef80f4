#pragma once
// Private to CUDA sources: every call of the CUDA runtime and of its libraries is checked.

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <source_location>
#include <string>

#include "kernels/core/check.h"

namespace k25 {

[[noreturn, gnu::cold, gnu::noinline]] inline void cuda_failed(const char* call,
                                                               const std::string& why,
                                                               std::source_location where) {
  fail(ErrorKind::kInternal, std::string(call) + ": " + why, where);
}

}  // namespace k25

#define K25_CUDA_CHECK(call)                                                                     \
  do {                                                                                           \
    const cudaError_t k25_error = (call);                                                        \
    if (k25_error != cudaSuccess) [[unlikely]]                                                   \
      ::k25::cuda_failed(#call, cudaGetErrorString(k25_error), std::source_location::current()); \
  } while (false)

/// After every kernel launch. With the environment variable K25_SYNC_LAUNCH=1 it also waits, so
/// that an error inside a kernel is reported by its own launch.
#define K25_CUDA_CHECK_LAUNCH()                                             \
  do {                                                                      \
    K25_CUDA_CHECK(cudaGetLastError());                                     \
    static const bool k25_sync = std::getenv("K25_SYNC_LAUNCH") != nullptr; \
    if (k25_sync) K25_CUDA_CHECK(cudaDeviceSynchronize());                  \
  } while (false)

#define K25_CUBLAS_CHECK(call)                                       \
  do {                                                               \
    const cublasStatus_t k25_status = (call);                        \
    if (k25_status != CUBLAS_STATUS_SUCCESS) [[unlikely]]            \
      ::k25::cuda_failed(#call, cublasLtGetStatusString(k25_status), \
                         std::source_location::current());           \
  } while (false)
