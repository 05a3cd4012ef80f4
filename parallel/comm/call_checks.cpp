#include "parallel/comm/call_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/core/isa.h"
#include "kernels/core/tensor.h"
#include "kernels/reduce/reduce.h"

namespace k25::parallel {
namespace {

void need(bool condition, const CallId& id, std::string_view why) {
  if (condition) return;
  fail(ErrorKind::kUsage, fmt::format("{} {} on {}: {}", op_name(id.op), id.name, id.comm, why));
}

CallId begin(const Communicator& comm, const Call& call, Op op, std::int64_t bytes) {
  CallId id{0, op, std::string(call.name), comm.name(), bytes};
  need(bytes >= 0, id, fmt::format("the size is negative ({})", bytes));
  return id;
}

template <class T>
void fold(ReduceOp op, std::int64_t count, T* out, const T* in) {
  for (std::int64_t i = 0; i < count; ++i) {
    switch (op) {
      case ReduceOp::kSum:
        out[i] = out[i] + in[i];
        break;
      case ReduceOp::kMax:
        // A NaN wins, so that every rank sees it whatever its order.
        out[i] = (in[i] > out[i] || in[i] != in[i]) ? in[i] : out[i];
        break;
      case ReduceOp::kMin:
        out[i] = (in[i] < out[i] || in[i] != in[i]) ? in[i] : out[i];
        break;
      case ReduceOp::kBitOr:
        if constexpr (std::is_integral_v<T>) out[i] |= in[i];
        break;
    }
  }
}

}  // namespace

void require_host_queue(const CallId& id, const Call& call) {
  need(call.queue.is_host(), id, "this backend has no CUDA streams; use Queue::host()");
}

CallId checked(const Communicator& comm, const Call& call, const AllGather& args) {
  CallId id = begin(comm, call, Op::kAllGather, args.per_rank.n);
  need(args.buffer != nullptr || args.per_rank.n == 0, id, "the buffer is null");
  return id;
}

CallId checked(const Communicator& comm, const Call& call, const AllToAll& args) {
  CallId id = begin(comm, call, Op::kAllToAll, args.per_rank.n);
  const bool given = args.send != nullptr && args.recv != nullptr;
  need(given || args.per_rank.n == 0, id, "a buffer is null");
  need(args.per_rank.n == 0 || args.send != args.recv, id, "send and recv must not be the same");
  return id;
}

CallId checked(const Communicator& comm, const Call& call, const AllToAllV& args) {
  // Sizes differ by rank, so they are no part of what comm.check compares.
  CallId id = begin(comm, call, Op::kAllToAllV, 0);
  const auto size = static_cast<std::size_t>(comm.size());
  need(args.send_offsets.size() == size && args.send_sizes.size() == size &&
           args.recv_offsets.size() == size && args.recv_sizes.size() == size,
       id, fmt::format("offsets and sizes need one entry for each of {} ranks", size));
  for (std::size_t r = 0; r < size; ++r) {
    need(args.send_sizes[r].n >= 0 && args.recv_sizes[r].n >= 0 && args.send_offsets[r].n >= 0 &&
             args.recv_offsets[r].n >= 0,
         id, fmt::format("the size or offset for rank {} is negative", r));
    need(args.send != nullptr || args.send_sizes[r].n == 0, id, "the send buffer is null");
    need(args.recv != nullptr || args.recv_sizes[r].n == 0, id, "the recv buffer is null");
  }
  const auto me = static_cast<std::size_t>(comm.rank());
  need(args.send_sizes[me] == args.recv_sizes[me], id,
       fmt::format("this rank sends itself {} bytes but expects {}", args.send_sizes[me].n,
                   args.recv_sizes[me].n));
  return id;
}

CallId checked(const Communicator& comm, const Call& call, const ReduceScatter& args) {
  CallId id = begin(comm, call, Op::kReduceScatter, bytes_of(args.per_slice, DType::kFloat32).n);
  const bool empty = args.per_slice.n == 0;
  need(empty || (args.input != nullptr && args.accumulator != nullptr), id, "a buffer is null");
  const bool needs_scratch = args.mode == ReduceMode::kOrdered || !call.queue.is_host();
  need(empty || !needs_scratch || args.scratch != nullptr || comm.size() == 1, id,
       "the ordered mode, and every mode on a CUDA stream, needs scratch memory");
  need(args.slice_of_rank.empty() ||
           args.slice_of_rank.size() == static_cast<std::size_t>(comm.size()),
       id, fmt::format("slice_of_rank needs one entry for each of {} ranks", comm.size()));
  for (const int slice : args.slice_of_rank) {
    need(slice >= 0, id, fmt::format("slice_of_rank holds {}", slice));
  }
  return id;
}

CallId checked(const Communicator& comm, const Call& call, const AllReduceSmall& args) {
  CallId id = begin(comm, call, Op::kAllReduceSmall,
                    args.count * static_cast<std::int64_t>(sizeof(std::int64_t)));
  const bool one = (args.values == nullptr) != (args.integers == nullptr);
  need(args.count == 0 || one, id, "give either values or integers");
  need(args.values == nullptr || args.op != ReduceOp::kBitOr, id, "bit_or needs integers");
  return id;
}

CallId checked(const Communicator& comm, const Call& call, const Broadcast& args) {
  CallId id = begin(comm, call, Op::kBroadcast, args.size.n);
  need(args.data != nullptr || args.size.n == 0, id, "the buffer is null");
  need(args.root >= 0 && args.root < comm.size(), id,
       fmt::format("root {} is not one of {} ranks", args.root, comm.size()));
  return id;
}

CallId checked(const Communicator& comm, const Call& call, const RingExchange& args) {
  CallId id = begin(comm, call, Op::kRingExchange, args.size.n);
  const bool given = args.send != nullptr && args.recv != nullptr;
  need(given || args.size.n == 0, id, "a buffer is null");
  need(args.size.n == 0 || args.send != args.recv, id, "send and recv must not be the same");
  return id;
}

int slice_of(const ReduceScatter& args, int rank) {
  return args.slice_of_rank.empty() ? rank : args.slice_of_rank[static_cast<std::size_t>(rank)];
}

void fold_ordered(const float* parts, std::int64_t num_parts, std::int64_t n, float* accumulator) {
  if (num_parts == 0 || n == 0) return;
  Context ctx;
  ctx.isa = detect_cpu_isa();
  kernels::ordered_sum(ctx, ConstTensor(parts, DType::kFloat32, {num_parts, n}),
                       Tensor(accumulator, DType::kFloat32, {n}));
}

void fold_small(const AllReduceSmall& args, double* out, const double* in) {
  fold(args.op, args.count, out, in);
}

void fold_small(const AllReduceSmall& args, std::int64_t* out, const std::int64_t* in) {
  fold(args.op, args.count, out, in);
}

}  // namespace k25::parallel
