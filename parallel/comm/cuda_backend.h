#pragma once
// Communicators for device memory. A call on a CUDA stream's queue runs through NCCL (copies, for
// one rank) on a stream of its own, so that it overlaps with the caller's kernels: it starts when
// what the caller's stream holds at the time of the call is done, and Work::wait_on(stream) makes a
// stream wait for it without stopping the host. A call on the host's queue goes to the communicator
// underneath.
//
// The ordered reduction is ours here too: an exchange of slices, then a kernel that adds them in
// rank order. Nothing but copies goes through NCCL in that mode.
//
// Errors  kCommunication from every call and every Work once a call made no progress for
//         comm.timeout_s: the message names the collective and the ranks, with host and pid, that
//         are not in it; NCCL is aborted then. kUsage when two ranks of one host have the same GPU.

#include <memory>

#include "kernels/core/context.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/world.h"

namespace k25::parallel {

/// What the device communicators of one process share: the communication stream, events, watchdog.
class CudaLink;

/// Collective over the world. The calling thread's current device is this rank's.
std::shared_ptr<CudaLink> make_cuda_link(World& world);

/// Collective over `host`'s ranks. The result owns `host`.
std::unique_ptr<Communicator> make_cuda_communicator(std::unique_ptr<Communicator> host,
                                                     std::shared_ptr<CudaLink> link);

/// Done when what `stream` holds now is done.
Work mark_stream(CudaLink& link, cudaStream_t stream);

/// Blocks the host until what `stream` holds is done. Unlike the CUDA runtime's own wait it ends
/// with an error when a collective hangs.
void wait_for_stream(CudaLink& link, cudaStream_t stream);

}  // namespace k25::parallel
