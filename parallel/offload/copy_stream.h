#pragma once
// Copies between host and device memory beside the computation, in order among themselves.
//
// On a GPU the copies are enqueued on a stream of their own and nothing waits for them but who asks
// through a Work. Without one (no link) memory is all alike: copy() has copied when it returns, and
// every Work is done.
//
// One thread uses a CopyStream at a time.

#include <memory>

#include "kernels/core/device.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/cuda_backend.h"

namespace k25::parallel {

class CopyStream {
 public:
  /// `link`: of this process's GPU, which is current for the calling thread; null on the CPU.
  explicit CopyStream(CudaLink* link);
  ~CopyStream();

  /// Before the first call on another thread than the constructor's.
  void use_on_this_thread() const;
  /// Where copies wait for, and where others may wait.
  Queue queue() const;

  /// Copies from here on wait for what `queue` holds now.
  void follow(const Queue& queue);
  /// Host memory is pinned, or the call waits.
  void copy(const void* from, void* to, Bytes size);
  /// Done when all copies so far are.
  Work mark();

 private:
  CudaLink* link_;
  std::unique_ptr<CudaStream> stream_;
};

}  // namespace k25::parallel
