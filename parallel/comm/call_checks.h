#pragma once
// Private to parallel/comm: the one validation of every call's arguments, shared by all backends.
// Each throws kUsage and names the call.

#include "parallel/comm/collective_log.h"
#include "parallel/comm/communicator.h"

namespace k25::parallel {

/// A validated call; bytes is what the call moves for one rank, for messages and comm.check.
CallId checked(const Communicator& comm, const Call& call, const AllGather& args);
CallId checked(const Communicator& comm, const Call& call, const AllToAll& args);
CallId checked(const Communicator& comm, const Call& call, const AllToAllV& args);
CallId checked(const Communicator& comm, const Call& call, const ReduceScatter& args);
CallId checked(const Communicator& comm, const Call& call, const AllReduceSmall& args);
CallId checked(const Communicator& comm, const Call& call, const Broadcast& args);
CallId checked(const Communicator& comm, const Call& call, const RingExchange& args);

/// For backends without CUDA streams.
void require_host_queue(const CallId& id, const Call& call);

/// The slice that `rank` owns: slice_of_rank[rank], or rank.
int slice_of(const ReduceScatter& args, int rank);

/// Adds `num_parts` contributions of `n` elements to `accumulator`, in order.
void fold_ordered(const float* parts, std::int64_t num_parts, std::int64_t n, float* accumulator);

/// out[i] = out[i] op in[i] for AllReduceSmall.
void fold_small(const AllReduceSmall& args, double* out, const double* in);
void fold_small(const AllReduceSmall& args, std::int64_t* out, const std::int64_t* in);

}  // namespace k25::parallel
