#include "parallel/comm/single_backend.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "kernels/core/check.h"
#include "parallel/comm/call_checks.h"

namespace k25::parallel {
namespace {

void copy(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memmove(to, from, static_cast<std::size_t>(bytes));
}

class SingleCommunicator final : public Communicator {
 public:
  SingleCommunicator(std::string name, std::shared_ptr<CollectiveLog> log,
                     std::chrono::milliseconds timeout)
      : name_(std::move(name)), log_(std::move(log)), timeout_(timeout) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& name() const override { return name_; }

  Work all_gather(const Call& call, const AllGather& args) override {
    return record(host_call(call, args));
  }
  Work all_to_all(const Call& call, const AllToAll& args) override {
    const CallId id = host_call(call, args);
    copy(args.recv, args.send, args.per_rank.n);
    return record(id);
  }
  Work all_to_all_v(const Call& call, const AllToAllV& args) override {
    const CallId id = host_call(call, args);
    if (args.send_sizes[0].n > 0) {
      copy(static_cast<char*>(args.recv) + args.recv_offsets[0].n,
           static_cast<const char*>(args.send) + args.send_offsets[0].n, args.send_sizes[0].n);
    }
    return record(id);
  }
  Work reduce_scatter(const Call& call, const ReduceScatter& args) override {
    const CallId id = host_call(call, args);
    const std::int64_t n = args.per_slice.n;
    if (n > 0) fold_ordered(args.input + slice_of(args, 0) * n, 1, n, args.accumulator);
    return record(id);
  }
  Work all_reduce_small(const Call& call, const AllReduceSmall& args) override {
    return record(host_call(call, args));
  }
  Work broadcast(const Call& call, const Broadcast& args) override {
    return record(host_call(call, args));
  }
  Work ring_exchange(const Call& call, const RingExchange& args) override {
    const CallId id = host_call(call, args);
    copy(args.recv, args.send, args.size.n);
    return record(id);
  }
  void barrier(std::string_view name, Clock::time_point /*deadline*/) override {
    record(CallId{0, Op::kBarrier, std::string(name), name_, 0});
  }

  void group_begin() override {
    K25_CHECK(!in_group_, "group_begin inside a group on " + name_ + ": call group_end first");
    in_group_ = true;
  }
  Work group_end() override {
    K25_CHECK(in_group_, "group_end without group_begin on " + name_);
    in_group_ = false;
    return {};
  }

  Clock::time_point default_deadline() const override { return Clock::now() + timeout_; }

 private:
  template <class Args>
  CallId host_call(const Call& call, const Args& args) const {
    CallId id = checked(*this, call, args);
    require_host_queue(id, call);
    return id;
  }
  Work record(CallId id) {
    id.sequence = sequence_++;
    log_->done(log_->add(id));
    return {};
  }

  std::string name_;
  std::shared_ptr<CollectiveLog> log_;
  std::chrono::milliseconds timeout_;
  std::int64_t sequence_ = 0;
  bool in_group_ = false;
};

class SingleWorld final : public World {
 public:
  explicit SingleWorld(const WorldOptions& options)
      : timeout_(options.timeout),
        peer_{host_name(), static_cast<std::int64_t>(getpid())},
        log_(std::make_shared<CollectiveLog>()),
        comm_(make_single_communicator("world", log_, timeout_)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  const Peer& peer(int rank) const override {
    K25_CHECK(rank == 0, fmt::format("rank {} asked for in a world of one", rank));
    return peer_;
  }

  Communicator& comm() override { return *comm_; }
  std::unique_ptr<Communicator> split(int color, int /*key*/, const std::string& name) override {
    K25_CHECK(color >= 0, fmt::format("split {}: color {} is negative", name, color));
    return make_single_communicator(name, log_, timeout_);
  }
  void configure(const WorldOptions& options) override {
    check_options(options);
    timeout_ = options.timeout;
  }

  std::string waiting_for() const override { return {}; }
  std::string dump() const override { return log_->dump(); }
  std::shared_ptr<CollectiveLog> log() const override { return log_; }
  bool peer_failed() const override { return false; }

  void finish() override {}
  [[noreturn]] void abort(int exit_code) override {
    std::fflush(nullptr);
    std::_Exit(exit_code);
  }

 private:
  std::chrono::milliseconds timeout_;
  Peer peer_;
  std::shared_ptr<CollectiveLog> log_;
  std::unique_ptr<Communicator> comm_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator(std::string name,
                                                       std::shared_ptr<CollectiveLog> log,
                                                       std::chrono::milliseconds timeout) {
  return std::make_unique<SingleCommunicator>(std::move(name), std::move(log), timeout);
}

std::unique_ptr<World> make_single_world(const WorldOptions& options) {
  check_options(options);
  return std::make_unique<SingleWorld>(options);
}

void check_options(const WorldOptions& options) {
  if (options.timeout.count() <= 0) {
    fail(ErrorKind::kUsage, fmt::format("comm.timeout_s must be positive, got {} s",
                                        static_cast<double>(options.timeout.count()) / 1000));
  }
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();  // MPI counts are int
  if (options.max_chunk.n < 4 || options.max_chunk.n > kMost) {
    fail(ErrorKind::kUsage, fmt::format("comm.max_chunk must be between 4 and {} bytes, got {}",
                                        kMost, options.max_chunk.n));
  }
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "unknown";
  return name;
}

}  // namespace k25::parallel
