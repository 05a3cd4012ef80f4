#include "parallel/comm/mpi_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>

#include "kernels/core/check.h"
#include "parallel/comm/call_checks.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/comm_thread.h"
#include "parallel/comm/single_backend.h"

namespace k25::parallel {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kMostInFlight = 2048;  // half of the sequence numbers a tag can tell apart

/// The first rank to give up speaks; mpirun ends the others a second later, before they do.
milliseconds start_patience() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return milliseconds{rank == nullptr ? 0 : std::min(1500 * std::atoi(rank), 12000)};
}

/// What all communicators of the job share.
struct Runtime {
  explicit Runtime(std::unique_ptr<Transport> transport) : thread(std::move(transport)) {}

  void configure(const WorldOptions& options) {
    timeout_ms = options.timeout.count();
    max_chunk = options.max_chunk.n;
    check = options.check;
    thread.set_timeout(options.timeout);
  }

  CommThread thread;
  std::atomic<std::int64_t> timeout_ms{0}, max_chunk{0};
  std::atomic<bool> check{false};
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<Runtime> runtime, std::shared_ptr<Channel> channel)
      : runtime_(std::move(runtime)), channel_(std::move(channel)) {}

  int rank() const override { return channel_->rank; }
  int size() const override { return channel_->size(); }
  const std::string& name() const override { return channel_->name; }

  Work all_gather(const Call& call, const AllGather& args) override { return any(call, args); }
  Work all_to_all(const Call& call, const AllToAll& args) override { return any(call, args); }
  Work all_to_all_v(const Call& call, const AllToAllV& args) override { return any(call, args); }
  Work reduce_scatter(const Call& call, const ReduceScatter& args) override {
    const Turn turn = args.mode == ReduceMode::kLibrary ? Turn::kAlone : Turn::kAny;
    const CallId id = checked(*this, call, args);
    require_host_queue(id, call);
    return begin(id, steps_of(*channel_, args), turn);
  }
  Work all_reduce_small(const Call& call, const AllReduceSmall& args) override {
    return any(call, args);
  }
  Work broadcast(const Call& call, const Broadcast& args) override { return any(call, args); }
  Work ring_exchange(const Call& call, const RingExchange& args) override {
    return any(call, args);
  }

  void barrier(std::string_view name, Clock::time_point deadline) override {
    K25_CHECK(!in_group_, "a barrier cannot be part of a group on " + channel_->name);
    const CallId id{0, Op::kBarrier, std::string(name), channel_->name, 0};
    auto operation = prepare(id, barrier_steps(*channel_), Turn::kAny);
    const auto state = operation->state;
    const std::string text = operation->id.describe();
    submit(std::move(operation));
    if (state->wait(deadline)) return;
    const std::string missing = runtime_->thread.missing_in(state.get());
    if (state->done()) return;
    fail(ErrorKind::kCommunication,
         fmt::format("{}: {} did not arrive before the deadline", text, missing));
  }

  void group_begin() override {
    K25_CHECK(!in_group_,
              "group_begin inside a group on " + channel_->name + ": call group_end first");
    in_group_ = true;
  }

  Work group_end() override {
    K25_CHECK(in_group_, "group_end without group_begin on " + channel_->name);
    in_group_ = false;
    if (group_.empty()) return {};
    std::vector<std::shared_ptr<CallState>> parts;
    for (const auto& operation : group_) parts.push_back(operation->state);
    runtime_->thread.submit(std::move(group_));
    group_.clear();
    return Work(std::make_shared<GroupState>(std::move(parts)));
  }

  Clock::time_point default_deadline() const override {
    return Clock::now() + milliseconds{runtime_->timeout_ms.load()};
  }

  /// Every rank's (color, key), by rank: the exchange before a split.
  std::vector<std::array<int, 2>> exchange_split(int color, int key, const std::string& name) {
    std::vector<std::array<int, 2>> all(static_cast<std::size_t>(size()));
    all[static_cast<std::size_t>(rank())] = {color, key};
    const AllGather args{all.data(), Bytes{sizeof(all[0])}};
    const CallId id{0, Op::kSplit, name, channel_->name, args.per_rank.n};
    begin(id, steps_of(*channel_, args), Turn::kAny).wait();
    return all;
  }

 private:
  template <class Args>
  Work any(const Call& call, const Args& args) {
    const CallId id = checked(*this, call, args);
    require_host_queue(id, call);
    return begin(id, steps_of(*channel_, args), Turn::kAny);
  }

  Work begin(const CallId& id, std::vector<Operation::Step> steps, Turn turn) {
    auto operation = prepare(id, std::move(steps), turn);
    const auto state = operation->state;
    if (in_group_) {
      group_.push_back(std::move(operation));
    } else {
      submit(std::move(operation));
    }
    return Work(state);
  }

  std::unique_ptr<Operation> prepare(CallId id, std::vector<Operation::Step> steps, Turn turn) {
    K25_CHECK(channel_->in_flight.load() < kMostInFlight,
              fmt::format("{} calls are in flight on {}: wait for some first", kMostInFlight,
                          channel_->name));
    channel_->in_flight.fetch_add(1);
    id.sequence = sequence_++;
    auto operation = std::make_unique<Operation>();
    operation->channel = channel_;
    if (runtime_->check) operation->steps = check_steps(channel_, id);
    std::ranges::move(steps, std::back_inserter(operation->steps));
    operation->turn = turn;
    operation->max_chunk = runtime_->max_chunk;
    operation->state = runtime_->thread.new_state(id);
    operation->log_key = runtime_->thread.log()->add(id);
    operation->id = std::move(id);
    return operation;
  }

  void submit(std::unique_ptr<Operation> operation) {
    std::vector<std::unique_ptr<Operation>> one;
    one.push_back(std::move(operation));
    runtime_->thread.submit(std::move(one));
  }

  std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<Channel> channel_;
  std::int64_t sequence_ = 0;
  bool in_group_ = false;
  std::vector<std::unique_ptr<Operation>> group_;
};

class MpiWorld final : public World {
 public:
  MpiWorld(std::unique_ptr<Transport> transport, const WorldOptions& options)
      : runtime_(std::make_shared<Runtime>(std::move(transport))) {
    runtime_->thread.start(options.timeout, start_patience());
    runtime_->configure(options);
    const std::vector<Peer>& peers = runtime_->thread.peers();
    const std::string& host = peers[static_cast<std::size_t>(rank())].host;
    for (int r = 0; r < size(); ++r) {
      if (peers[static_cast<std::size_t>(r)].host != host) continue;
      ++local_size_;
      if (r < rank()) ++local_rank_;
    }
    if (size() == 1) {
      comm_ = make_single_communicator("world", runtime_->thread.log(), options.timeout);
      return;
    }
    auto channel = std::make_shared<Channel>();
    channel->rank = rank();
    channel->name = "world";
    channel->world_ranks.resize(peers.size());
    std::iota(channel->world_ranks.begin(), channel->world_ranks.end(), 0);
    auto comm = std::make_unique<MpiCommunicator>(runtime_, std::move(channel));
    exchange_ = comm.get();
    comm_ = std::move(comm);
  }

  int rank() const override { return runtime_->thread.rank(); }
  int size() const override { return static_cast<int>(runtime_->thread.peers().size()); }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  const Peer& peer(int rank) const override {
    K25_CHECK(rank >= 0 && rank < size(), fmt::format("rank {} of {}", rank, size()));
    return runtime_->thread.peers()[static_cast<std::size_t>(rank)];
  }

  Communicator& comm() override { return *comm_; }

  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    K25_CHECK(color >= 0, fmt::format("split {}: color {} is negative", name, color));
    const milliseconds timeout{runtime_->timeout_ms.load()};
    if (size() == 1) return make_single_communicator(name, runtime_->thread.log(), timeout);
    // The exchange is under the watchdog; MPI's own split, which is not, begins when all are there.
    const auto all = exchange_->exchange_split(color, key, name);
    auto channel = std::make_shared<Channel>();
    channel->name = name;
    for (int r = 0; r < size(); ++r) {
      if (all[static_cast<std::size_t>(r)][0] == color) channel->world_ranks.push_back(r);
    }
    std::ranges::stable_sort(channel->world_ranks, {},
                             [&](int r) { return all[static_cast<std::size_t>(r)][1]; });
    const auto me = std::ranges::find(channel->world_ranks, rank());
    channel->rank = static_cast<int>(me - channel->world_ranks.begin());
    runtime_->thread.run("split " + name, [&](Transport& transport) {
      channel->number = transport.create_channel(color, key);
    });
    if (channel->size() == 1) {
      return make_single_communicator(name, runtime_->thread.log(), timeout);
    }
    return std::make_unique<MpiCommunicator>(runtime_, std::move(channel));
  }

  void configure(const WorldOptions& options) override {
    check_options(options);
    runtime_->configure(options);
  }

  std::string waiting_for() const override { return runtime_->thread.waiting_for(); }
  std::string dump() const override { return runtime_->thread.log()->dump(); }
  std::shared_ptr<CollectiveLog> log() const override { return runtime_->thread.log(); }
  bool peer_failed() const override { return runtime_->thread.peer_failed(); }

  void finish() override {
    runtime_->thread.drain();
    // Every rank has drained behind this barrier, so none needs another one any more.
    comm_->barrier("finish", comm_->default_deadline());
    runtime_->thread.finish();
  }

  [[noreturn]] void abort(int exit_code) override { runtime_->thread.abort(exit_code); }

 private:
  std::shared_ptr<Runtime> runtime_;
  int local_rank_ = 0;
  int local_size_ = 0;
  std::unique_ptr<Communicator> comm_;
  MpiCommunicator* exchange_ = nullptr;  // comm_, in a world of several
};

}  // namespace

std::unique_ptr<World> make_transport_world(std::unique_ptr<Transport> transport,
                                            const WorldOptions& options) {
  check_options(options);
  return std::make_unique<MpiWorld>(std::move(transport), options);
}

std::unique_ptr<World> make_mpi_world(const WorldOptions& options) {
  // Ranks on a CPU share cores with compute threads: MPI must not spin. A user's setting wins.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  return make_transport_world(make_mpi_transport(), options);
}

}  // namespace k25::parallel
