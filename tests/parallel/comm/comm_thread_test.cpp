// The communication thread without MPI: chunks beyond 2^31 bytes, the watchdog, failing peers, and
// calls that differ.

#include "parallel/comm/comm_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/collectives.h"
#include "parallel/comm/mpi_backend.h"
#include "tests/parallel/comm/loopback_transport.h"

namespace k25::parallel {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// ---- chunks -------------------------------------------------------------------------------------

TEST(Chunks, CutExactly) {
  const auto cut = [](std::int64_t bytes, std::int64_t most) {
    std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
    for_each_chunk(bytes, most, [&](std::int64_t o, std::int64_t n) { pieces.emplace_back(o, n); });
    return pieces;
  };
  using Pieces = std::vector<std::pair<std::int64_t, std::int64_t>>;
  EXPECT_EQ(cut(0, 1024), (Pieces{{0, 0}}));
  EXPECT_EQ(cut(1, 1024), (Pieces{{0, 1}}));
  EXPECT_EQ(cut(1024, 1024), (Pieces{{0, 1024}}));
  EXPECT_EQ(cut(1025, 1024), (Pieces{{0, 1024}, {1024, 1}}));
  const std::int64_t gib = std::int64_t{1} << 30;
  EXPECT_EQ(cut(2 * gib + 8, gib), (Pieces{{0, gib}, {gib, gib}, {2 * gib, 8}}));
  const std::int64_t most = std::numeric_limits<int>::max();
  EXPECT_EQ(cut((std::int64_t{1} << 31) + 8, most), (Pieces{{0, most}, {most, 9}}));
}

/// Rank 0 of two; completes everything at once and touches no memory.
class RecordingTransport final : public Transport {
 public:
  struct Posted {
    char kind;
    int peer;
    std::uintptr_t data;
    std::int64_t size;
    auto operator<=>(const Posted&) const = default;
  };
  explicit RecordingTransport(std::vector<Posted>& posted) : posted_(posted) {}

  std::vector<Peer> start(milliseconds) override { return {{"a", 1}, {"b", 2}}; }
  int rank() const override { return 0; }
  void send(Ticket t, const Envelope& to, const void* data, std::int64_t bytes) override {
    post('s', t, to.peer, data, bytes, 0);
  }
  void receive(Ticket t, const Envelope& from, void* data, std::int64_t bytes) override {
    post('r', t, from.peer, data, bytes, bytes);
  }
  void reduce(Ticket t, const Envelope& to, const float* in, float*, std::int64_t n) override {
    post('+', t, to.peer, in, n, 0);
  }
  void poll(std::vector<Completion>& done) override {
    for (const Completion& c : finished_) done.push_back(c);
    finished_.clear();
  }
  int create_channel(int, int) override { return 1; }
  std::optional<int> failed_peer() override { return std::nullopt; }
  void announce_failure(milliseconds) override {}
  void finalize() override {}
  [[noreturn]] void abort(int exit_code) override { std::_Exit(exit_code); }

 private:
  void post(char kind, Ticket ticket, int peer, const void* data, std::int64_t size,
            std::int64_t received) {
    posted_.push_back({kind, peer, reinterpret_cast<std::uintptr_t>(data), size});
    finished_.push_back({ticket, received, {}});
  }
  std::vector<Posted>& posted_;
  std::vector<Completion> finished_;
};

TEST(Chunks, MessagesBeyond31BitsKeepTheirOffsets) {
  std::vector<RecordingTransport::Posted> posted;
  WorldOptions options;
  options.max_chunk = Bytes{std::int64_t{1} << 30};
  const auto world = make_transport_world(std::make_unique<RecordingTransport>(posted), options);
  const std::int64_t gib = std::int64_t{1} << 30;
  const std::int64_t size = 2 * gib + 8;
  const std::uintptr_t base = std::uintptr_t{1} << 40;  // never touched
  world->comm().all_gather({"embedding"}, {reinterpret_cast<void*>(base), Bytes{size}}).wait();
  world->finish();
  const std::uintptr_t theirs = base + static_cast<std::uintptr_t>(size);
  const std::vector<RecordingTransport::Posted> expected = {
      {'r', 1, theirs, gib},
      {'r', 1, theirs + gib, gib},
      {'r', 1, theirs + 2 * gib, 8},
      {'s', 1, base, gib},
      {'s', 1, base + gib, gib},
      {'s', 1, base + 2 * gib, 8},
      {'r', 1, 0, 0},
      {'s', 1, 0, 0}};  // the barrier of finish
  EXPECT_EQ(posted, expected);
}

// ---- worlds of threads --------------------------------------------------------------------------

/// Runs `body` on each of `size` ranks, each a thread with its own world.
void on_ranks(int size, const WorldOptions& options, const std::function<void(World&)>& body) {
  const auto hub = std::make_shared<LoopbackHub>(size);
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.emplace_back([&, r] {
      const auto world = make_transport_world(std::make_unique<LoopbackTransport>(hub, r), options);
      body(*world);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

WorldOptions impatient(int ms) {
  WorldOptions options;
  options.timeout = milliseconds(ms);
  return options;
}

/// The message of the kCommunication error that `body` throws.
std::string communication_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kCommunication) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing thrown";
  return {};
}

void gather(Communicator& comm, const std::string& name) {
  std::vector<int> buffer(static_cast<std::size_t>(comm.size()), comm.rank());
  comm.all_gather({name}, {buffer.data(), Bytes{sizeof(int)}}).wait();
  for (int r = 0; r < comm.size(); ++r) EXPECT_EQ(buffer[static_cast<std::size_t>(r)], r);
}

TEST(WorldOfThreads, RunsCollectivesSplitsAndFinishes) {
  on_ranks(3, impatient(30000), [](World& world) {
    for (int i = 0; i < 50; ++i) gather(world.comm(), "layers." + std::to_string(i));
    const auto pair = world.split(world.rank() / 2, world.rank(), "pair");
    EXPECT_EQ(pair->size(), world.rank() < 2 ? 2 : 1);
    for (int i = 0; i < 50; ++i) gather(*pair, "pair." + std::to_string(i));
    world.finish();
    EXPECT_FALSE(world.peer_failed());
  });
}

TEST(WorldOfThreads, MoreCallsThanSequenceNumbersInATag) {
  on_ranks(2, impatient(30000), [](World& world) {
    std::vector<Work> works;
    for (int i = 0; i < 9000; ++i) {
      works.push_back(world.comm().broadcast({"turn"}, {nullptr, Bytes{0}, 0}));
      if (works.size() == 1000) {
        for (Work& work : works) work.wait();
        works.clear();
      }
    }
    for (Work& work : works) work.wait();
    gather(world.comm(), "last");
    world.finish();
  });
}

TEST(WorldOfThreads, TooManyCallsInFlightAreRefused) {
  on_ranks(2, impatient(30000), [](World& world) {
    world.comm().group_begin();  // nothing of it starts, so all stay in flight
    std::string message;
    int started = 0;
    try {
      for (; started < 3000; ++started) {
        world.comm().broadcast({"turn"}, {nullptr, Bytes{0}, 0});
      }
    } catch (const Error& e) {
      message = e.what();
    }
    EXPECT_EQ(started, 2048);
    EXPECT_NE(message.find("2048 calls are in flight on world"), std::string::npos) << message;
    world.comm().group_end().wait();
    world.finish();
  });
}

/// Rank 0 gives up first, with `expected`, and the others hear that it has.
void expect_said_once(const World& world, const std::string& message, const std::string& expected) {
  const bool speaks = world.rank() == 0;
  EXPECT_EQ(world.peer_failed(), !speaks);
  const std::string part =
      speaks ? expected : "rank 0 (host node0, pid 100) failed and has said why";
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Watchdog, NamesTheCallAndTheSilentRankAndFailsAllLaterCalls) {
  std::atomic<int> thrown{0};
  on_ranks(3, impatient(30000), [&](World& world) {
    gather(world.comm(), "layers.0");
    world.configure(impatient(300));
    if (world.rank() == 1) {
      while (thrown < 2) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    const std::string message = communication_error([&] { gather(world.comm(), "layers.3"); });
    expect_said_once(
        world, message,
        "no progress in collective #1 (all_gather layers.3 on world) from rank 1 (host "
        "node1, pid 101) for 0.3 s;");
    EXPECT_EQ(communication_error([&] { gather(world.comm(), "layers.4"); }), message);
    EXPECT_EQ(communication_error([&] { world.finish(); }), message);
    EXPECT_NE(world.waiting_for().find("missing rank 1"), std::string::npos);
    EXPECT_NE(world.dump().find("all_gather layers.3 4 bytes failed"), std::string::npos);
    ++thrown;
  });
}

TEST(Watchdog, ProgressOfAnyRankCounts) {
  // Six messages, each 500 ms after the one before: longer than the timeout together, never alone.
  on_ranks(2, impatient(2000), [](World& world) {
    const auto side = world.split(0, world.rank(), "side");
    std::vector<int> buffer(2);
    Work slow;
    if (world.rank() == 0) slow = side->all_gather({"slow"}, {buffer.data(), Bytes{4}});
    for (int i = 0; i < 6; ++i) {
      std::this_thread::sleep_for(milliseconds(500));
      gather(world.comm(), "fast." + std::to_string(i));
    }
    if (world.rank() == 1) slow = side->all_gather({"slow"}, {buffer.data(), Bytes{4}});
    slow.wait();
    world.finish();
  });
}

TEST(Watchdog, AnIdleRankNeverTimesOut) {
  on_ranks(2, impatient(30000), [](World& world) {
    gather(world.comm(), "before");
    world.configure(impatient(100));
    std::this_thread::sleep_for(milliseconds(400));
    world.configure(impatient(30000));
    gather(world.comm(), "after");
    world.finish();
  });
}

TEST(FailingPeer, EndsPendingAndLaterCalls) {
  const auto hub = std::make_shared<LoopbackHub>(3);
  std::atomic<int> thrown{0};
  std::vector<std::thread> ranks;
  for (const int r : {0, 2}) {
    ranks.emplace_back([&, r] {
      const auto world =
          make_transport_world(std::make_unique<LoopbackTransport>(hub, r), impatient(30000));
      const std::string message = communication_error([&] { gather(world->comm(), "x"); });
      EXPECT_NE(message.find("rank 1 (host node1, pid 101) failed"), std::string::npos) << message;
      EXPECT_TRUE(world->peer_failed());
      communication_error([&] { gather(world->comm(), "y"); });
      ++thrown;
    });
  }
  // Rank 1 is played by hand: a world of it would end this process.
  LoopbackTransport rank1(hub, 1);
  rank1.announce_failure(milliseconds(0));
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(thrown, 2);
}

TEST(FailingPeer, IsNoticedByAnIdleRank) {
  const auto hub = std::make_shared<LoopbackHub>(2);
  const auto world =
      make_transport_world(std::make_unique<LoopbackTransport>(hub, 0), impatient(30000));
  EXPECT_FALSE(world->peer_failed());
  LoopbackTransport(hub, 1).announce_failure(milliseconds(0));
  const auto until = Clock::now() + seconds(20);
  while (!world->peer_failed() && Clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_TRUE(world->peer_failed());
}

// ---- comm.check ---------------------------------------------------------------------------------

/// What rank 0 must report when rank 1 makes the call `odd` and the others `usual`.
void expect_difference(const std::function<void(Communicator&)>& usual,
                       const std::function<void(Communicator&)>& odd, const std::string& expected) {
  WorldOptions options = impatient(30000);
  options.check = true;
  on_ranks(3, options, [&](World& world) {
    gather(world.comm(), "layers.0");
    const std::string message =
        communication_error([&] { (world.rank() == 1 ? odd : usual)(world.comm()); });
    expect_said_once(world, message, expected);
  });
}

TEST(Check, NamesBothCalls) {
  const auto gather_bytes = [](const std::string& name, std::int64_t bytes) {
    return [=](Communicator& comm) {
      std::vector<char> buffer(static_cast<std::size_t>(bytes * comm.size()));
      comm.all_gather({name}, {buffer.data(), Bytes{bytes}}).wait();
    };
  };
  const auto exchange = [](Communicator& comm) {
    std::vector<char> a(4096 * 3), b(4096 * 3);
    comm.all_to_all({"layers.3"}, {a.data(), b.data(), Bytes{4096}}).wait();
  };
  const std::string usual = "rank 0: #1 all_gather layers.3 4096 bytes; ";
  expect_difference(gather_bytes("layers.3", 4096), exchange,
                    usual + "rank 1: #1 all_to_all layers.3 4096 bytes");
  expect_difference(gather_bytes("layers.3", 4096), gather_bytes("layers.4", 4096),
                    usual + "rank 1: #1 all_gather layers.4 4096 bytes");
  expect_difference(gather_bytes("layers.3", 4096), gather_bytes("layers.3", 4095),
                    usual + "rank 1: #1 all_gather layers.3 4095 bytes");
  // Names that differ behind the part that is shown differ all the same.
  const std::string start(80, 'n');
  expect_difference(gather_bytes(start + "a", 8), gather_bytes(start + "b", 8),
                    "the ranks call different collectives on world");
}

TEST(Check, WithoutItSizesThatDifferAreFoundByTheMessages) {
  for (const int odd_size : {4, 12}) {
    on_ranks(2, impatient(30000), [&](World& world) {
      std::vector<char> buffer(64);
      const Bytes size{world.rank() == 1 ? odd_size : 8};
      const std::string message = communication_error(
          [&] { world.comm().all_gather({"layers.3"}, {buffer.data(), size}).wait(); });
      expect_said_once(world, message,
                       "collective #0 (all_gather layers.3 on world): rank 1 (host node1, pid 101) "
                       "sent " +
                           std::to_string(odd_size) + " bytes where 8 were expected; comm.check");
    });
  }
}

}  // namespace
}  // namespace k25::parallel
