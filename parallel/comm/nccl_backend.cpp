#include <fmt/format.h>
#include <nccl.h>

#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/core/cuda_check.h"
#include "kernels/core/tensor.h"
#include "kernels/reduce/reduce.h"
#include "parallel/comm/agree.h"
#include "parallel/comm/call_checks.h"
#include "parallel/comm/cuda_backend.h"
#include "parallel/comm/cuda_link.h"

#define K25_NCCL_CHECK(call)                                                                    \
  do {                                                                                          \
    const ncclResult_t k25_result = (call);                                                     \
    if (k25_result != ncclSuccess && k25_result != ncclInProgress) [[unlikely]] {               \
      ::k25::fail(::k25::ErrorKind::kCommunication, std::string(#call) + ": " +                 \
                                                        ncclGetErrorString(k25_result) + " (" + \
                                                        ncclGetLastError(nullptr) + ")");       \
    }                                                                                           \
  } while (false)

namespace k25::parallel {
namespace {

/// A group's calls, on the device and on the host.
class BothState final : public Work::State {
 public:
  BothState(Work device, Work host) : device_(std::move(device)), host_(std::move(host)) {}
  bool done() override { return host_.done() && device_.done(); }
  bool wait(Clock::time_point until) override { return host_.wait(until) && device_.wait(until); }
  void wait_on(const Queue& queue) override {
    host_.wait();
    device_.wait_on(queue);
  }

 private:
  Work device_, host_;
};

std::size_t unsigned_size(std::int64_t n) { return static_cast<std::size_t>(n); }

template <class Pointer>
auto* at_byte(Pointer* base, std::int64_t offset) {
  using Byte = std::conditional_t<std::is_const_v<Pointer>, const char, char>;
  return base == nullptr ? nullptr : static_cast<Byte*>(base) + offset;
}

class CudaCommunicator final : public Communicator {
 public:
  CudaCommunicator(std::unique_ptr<Communicator> host, std::shared_ptr<CudaLink> link)
      : host_(std::move(host)), link_(std::move(link)) {
    if (size() > 1) connect();
  }
  ~CudaCommunicator() override {
    if (comm_ == nullptr) return;
    link_->remove(comm_);
    try {
      link_->check();
      ncclCommDestroy(comm_);
    } catch (const Error&) {
      // The watchdog has aborted it.
    }
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const std::string& name() const override { return host_->name(); }
  Clock::time_point default_deadline() const override { return host_->default_deadline(); }

  Work all_gather(const Call& call, const AllGather& args) override {
    if (call.queue.is_host()) return host_->all_gather(call, args);
    const CallId id = begin(call, checked(*this, call, args));
    if (size() > 1 && args.per_rank.n > 0) {
      K25_NCCL_CHECK(ncclAllGather(at_byte(args.buffer, rank() * args.per_rank.n), args.buffer,
                                   unsigned_size(args.per_rank.n), ncclInt8, comm_,
                                   link_->stream()));
    }
    return end(id);
  }

  Work all_to_all(const Call& call, const AllToAll& args) override {
    if (call.queue.is_host()) return host_->all_to_all(call, args);
    const CallId id = begin(call, checked(*this, call, args));
    const std::int64_t n = args.per_rank.n;
    exchange([&](int) { return n; }, [&](int peer) { return at_byte(args.send, peer * n); },
             [&](int) { return n; }, [&](int peer) { return at_byte(args.recv, peer * n); });
    return end(id);
  }

  Work all_to_all_v(const Call& call, const AllToAllV& args) override {
    if (call.queue.is_host()) return host_->all_to_all_v(call, args);
    const CallId id = begin(call, checked(*this, call, args));
    exchange(
        [&](int peer) { return args.send_sizes[unsigned_size(peer)].n; },
        [&](int peer) { return at_byte(args.send, args.send_offsets[unsigned_size(peer)].n); },
        [&](int peer) { return args.recv_sizes[unsigned_size(peer)].n; },
        [&](int peer) { return at_byte(args.recv, args.recv_offsets[unsigned_size(peer)].n); });
    return end(id);
  }

  Work reduce_scatter(const Call& call, const ReduceScatter& args) override {
    if (call.queue.is_host()) return host_->reduce_scatter(call, args);
    const CallId id = begin(call, checked(*this, call, args));
    const std::int64_t n = args.per_slice.n;
    if (n == 0) return end(id);
    if (size() == 1) {
      add_parts(args.input + slice_of(args, 0) * n, 1, n, args.accumulator);
    } else if (args.mode == ReduceMode::kOrdered) {
      const std::int64_t bytes = bytes_of(args.per_slice, DType::kFloat32).n;
      exchange([&](int) { return bytes; },
               [&](int peer) { return args.input + slice_of(args, peer) * n; },
               [&](int) { return bytes; }, [&](int peer) { return args.scratch + peer * n; });
      add_parts(args.scratch, size(), n, args.accumulator);
    } else {
      library_sum(args);
      add_parts(args.scratch, 1, n, args.accumulator);
    }
    return end(id);
  }

  /// Few numbers live on the host.
  Work all_reduce_small(const Call& call, const AllReduceSmall& args) override {
    return host_->all_reduce_small(call, args);
  }

  Work broadcast(const Call& call, const Broadcast& args) override {
    if (call.queue.is_host()) return host_->broadcast(call, args);
    const CallId id = begin(call, checked(*this, call, args));
    if (size() > 1 && args.size.n > 0) {
      K25_NCCL_CHECK(ncclBroadcast(args.data, args.data, unsigned_size(args.size.n), ncclInt8,
                                   args.root, comm_, link_->stream()));
    }
    return end(id);
  }

  Work ring_exchange(const Call& call, const RingExchange& args) override {
    if (call.queue.is_host()) return host_->ring_exchange(call, args);
    const CallId id = begin(call, checked(*this, call, args));
    const int to = (rank() + 1) % size();
    const int from = (rank() + size() - 1) % size();
    if (size() == 1) {
      copy(args.send, args.recv, args.size.n);
    } else if (args.size.n > 0) {
      K25_NCCL_CHECK(ncclGroupStart());
      K25_NCCL_CHECK(
          ncclSend(args.send, unsigned_size(args.size.n), ncclInt8, to, comm_, link_->stream()));
      K25_NCCL_CHECK(
          ncclRecv(args.recv, unsigned_size(args.size.n), ncclInt8, from, comm_, link_->stream()));
      K25_NCCL_CHECK(ncclGroupEnd());
    }
    return end(id);
  }

  void barrier(std::string_view name, Clock::time_point deadline) override {
    host_->barrier(name, deadline);
  }

  void group_begin() override {
    host_->group_begin();
    in_group_ = true;
    last_ = Work{};
  }
  Work group_end() override {
    Work host = host_->group_end();
    in_group_ = false;
    // The communication stream runs in order: the last call ends after all others.
    return Work(std::make_shared<BothState>(std::exchange(last_, Work{}), std::move(host)));
  }

 private:
  void connect() {
    int device = 0;
    K25_CUDA_CHECK(cudaGetDevice(&device));
    require_own_gpu(device);
    ncclUniqueId id{};
    collectively(*host_, "nccl id", [&] {
      if (rank() == 0) K25_NCCL_CHECK(ncclGetUniqueId(&id));
    });
    host_->broadcast({.name = "nccl id"}, {.data = &id, .size = Bytes{sizeof id}, .root = 0})
        .wait();
    collectively(*host_, "nccl start",
                 [&] { K25_NCCL_CHECK(ncclCommInitRank(&comm_, size(), id, rank())); });
    link_->add(comm_);
  }

  /// NCCL hangs or fails late when two of its ranks have one device.
  void require_own_gpu(int device) {
    struct Place {
      char host[64];
      char bus[24];
    };
    std::vector<Place> places(unsigned_size(size()));
    Place& mine = places[unsigned_size(rank())];
    const World& world = link_->world();
    std::strncpy(mine.host, world.peer(world.rank()).host.c_str(), sizeof mine.host - 1);
    K25_CUDA_CHECK(cudaDeviceGetPCIBusId(mine.bus, sizeof mine.bus, device));
    host_->all_gather({.name = "gpus"}, {places.data(), Bytes{sizeof(Place)}}).wait();
    for (int a = 0; a < size(); ++a) {
      for (int b = 0; b < a; ++b) {
        const Place &x = places[unsigned_size(a)], &y = places[unsigned_size(b)];
        if (std::strcmp(x.host, y.host) != 0 || std::strcmp(x.bus, y.bus) != 0) continue;
        throw AgreedError(
            ErrorKind::kUsage,
            fmt::format("ranks {} and {} of '{}' both have GPU {} of host {}; start at "
                        "most one rank for each GPU and look at CUDA_VISIBLE_DEVICES",
                        b, a, name(), x.bus, x.host),
            0);
      }
    }
  }

  CallId begin(const Call& call, CallId id) {
    id.sequence = sequence_++;
    link_->follow(call.queue);
    return id;
  }
  Work end(const CallId& id) {
    Work work = link_->finish_call(id);
    if (in_group_) last_ = work;
    return work;
  }

  void copy(const void* from, void* to, std::int64_t bytes) {
    if (bytes == 0) return;
    K25_CUDA_CHECK(
        cudaMemcpyAsync(to, from, unsigned_size(bytes), cudaMemcpyDeviceToDevice, link_->stream()));
  }

  /// Every rank to every rank, itself included.
  template <class SendSize, class Send, class RecvSize, class Recv>
  void exchange(const SendSize& send_size, const Send& send, const RecvSize& recv_size,
                const Recv& recv) {
    if (send_size(rank()) > 0) copy(send(rank()), recv(rank()), send_size(rank()));
    if (size() == 1) return;
    K25_NCCL_CHECK(ncclGroupStart());
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      if (send_size(peer) > 0) {
        K25_NCCL_CHECK(ncclSend(send(peer), unsigned_size(send_size(peer)), ncclInt8, peer, comm_,
                                link_->stream()));
      }
      if (recv_size(peer) > 0) {
        K25_NCCL_CHECK(ncclRecv(recv(peer), unsigned_size(recv_size(peer)), ncclInt8, peer, comm_,
                                link_->stream()));
      }
    }
    K25_NCCL_CHECK(ncclGroupEnd());
  }

  /// scratch = the library's sum of this rank's slice.
  void library_sum(const ReduceScatter& args) {
    const std::int64_t n = args.per_slice.n;
    if (args.slice_of_rank.empty() || is_identity(args.slice_of_rank)) {
      K25_NCCL_CHECK(ncclReduceScatter(args.input, args.scratch, unsigned_size(n), ncclFloat32,
                                       ncclSum, comm_, link_->stream()));
      return;
    }
    K25_NCCL_CHECK(ncclGroupStart());
    for (int root = 0; root < size(); ++root) {
      K25_NCCL_CHECK(ncclReduce(args.input + slice_of(args, root) * n, args.scratch,
                                unsigned_size(n), ncclFloat32, ncclSum, root, comm_,
                                link_->stream()));
    }
    K25_NCCL_CHECK(ncclGroupEnd());
  }

  static bool is_identity(std::span<const int> slices) {
    for (std::size_t i = 0; i < slices.size(); ++i) {
      if (slices[i] != static_cast<int>(i)) return false;
    }
    return true;
  }

  void add_parts(const float* parts, std::int64_t count, std::int64_t n, float* accumulator) {
    Context context;
    context.stream = link_->stream();
    context.num_sms = link_->num_sms();
    kernels::ordered_sum(context, ConstTensor(parts, DType::kFloat32, {count, n}, Device::kCuda),
                         Tensor(accumulator, DType::kFloat32, {n}, Device::kCuda));
  }

  std::unique_ptr<Communicator> host_;
  std::shared_ptr<CudaLink> link_;
  ncclComm_t comm_ = nullptr;
  std::int64_t sequence_ = 0;
  bool in_group_ = false;
  Work last_;
};

}  // namespace

std::unique_ptr<Communicator> make_cuda_communicator(std::unique_ptr<Communicator> host,
                                                     std::shared_ptr<CudaLink> link) {
  return std::make_unique<CudaCommunicator>(std::move(host), std::move(link));
}

}  // namespace k25::parallel
