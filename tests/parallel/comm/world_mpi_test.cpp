// What a world says about itself, its calls and its peers, and what it refuses.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "tests/mpi_main.h"

namespace k25::parallel {
namespace {

enum class Check { kOff, kOn };

class WorldOfRanks : public testing::TestWithParam<Check> {
 protected:
  void SetUp() override {
    WorldOptions options;
    options.timeout = std::chrono::seconds(30);
    options.check = GetParam() == Check::kOn;
    test_world().configure(options);
  }
  static Communicator& comm() { return test_world().comm(); }
  static int rank() { return comm().rank(); }
  static int size() { return comm().size(); }
};

INSTANTIATE_TEST_SUITE_P(Checks, WorldOfRanks, testing::Values(Check::kOff, Check::kOn));

TEST_P(WorldOfRanks, BadArgumentsAreRefusedBeforeAnythingMoves) {
  const auto message = [](const std::function<void()>& body) -> std::string {
    try {
      body();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUsage);
      return e.what();
    }
    return "nothing thrown";
  };
  char byte = 0;
  EXPECT_NE(message([&] { comm().all_gather({"x"}, {nullptr, Bytes{4}}); }).find("all_gather x"),
            std::string::npos);
  EXPECT_NE(message([&] { comm().all_gather({"x"}, {&byte, Bytes{-4}}); }).find("-4"),
            std::string::npos);
  EXPECT_NE(message([&] { comm().broadcast({"x"}, {&byte, Bytes{1}, size()}); }).find("root"),
            std::string::npos);
  EXPECT_NE(message([&] { comm().all_to_all_v({"x"}, {}); }).find("one entry"), std::string::npos);
  double value = 0;
  AllReduceSmall bits;
  bits.values = &value;
  bits.count = 1;
  bits.op = ReduceOp::kBitOr;
  EXPECT_NE(message([&] { comm().all_reduce_small({"x"}, bits); }).find("integers"),
            std::string::npos);
  EXPECT_NE(message([&] { test_world().split(-1, 0, "x"); }).find("color"), std::string::npos);
  WorldOptions options;
  options.max_chunk = Bytes{3};
  EXPECT_NE(message([&] { test_world().configure(options); }).find("comm.max_chunk"),
            std::string::npos);
  options = {};
  options.timeout = std::chrono::milliseconds(0);
  EXPECT_NE(message([&] { test_world().configure(options); }).find("comm.timeout_s"),
            std::string::npos);
  comm().barrier("still in step", comm().default_deadline());
}

TEST_P(WorldOfRanks, ABarrierThrowsAtItsDeadlineAndNamesWhoIsMissing) {
  if (size() == 1) return comm().barrier("alone", Clock::now());
  const auto side = test_world().split(0, rank(), "side");
  if (rank() == 0) {
    side->barrier("the others have thrown", side->default_deadline());
    comm().barrier("late", comm().default_deadline());
  } else {
    try {
      comm().barrier("late", Clock::now() + std::chrono::milliseconds(50));
      ADD_FAILURE() << "rank 0 was not there yet";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kCommunication);
      EXPECT_NE(std::string(e.what()).find("barrier late on world"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("rank 0 (host "), std::string::npos) << e.what();
    }
    side->barrier("the others have thrown", side->default_deadline());
  }
  comm().barrier("together", comm().default_deadline());
}

TEST_P(WorldOfRanks, WaitingForNamesTheCallAndTheMissingRank) {
  World& world = test_world();
  if (size() == 1) {
    EXPECT_EQ(world.waiting_for(), "");
    return;
  }
  const auto side = world.split(0, rank(), "side");
  std::vector<char> buffer(static_cast<std::size_t>(size()));
  const AllGather args{buffer.data(), Bytes{1}};
  if (rank() == 1) {
    side->barrier("rank 0 has seen it", side->default_deadline());
    comm().all_gather({"layers.3"}, args).wait();
  } else {
    Work work = comm().all_gather({"layers.3"}, args);
    std::string text;
    const auto until = Clock::now() + std::chrono::seconds(20);
    const std::string peer = "missing rank 1 (host " + world.peer(1).host + ", pid " +
                             std::to_string(world.peer(1).pid) + ")";
    while (text.find(peer) == std::string::npos && Clock::now() < until) text = world.waiting_for();
    EXPECT_NE(text.find("(all_gather layers.3 on world), " + peer), std::string::npos) << text;
    EXPECT_FALSE(work.done());
    EXPECT_FALSE(work.wait(Clock::now()));
    EXPECT_NE(world.dump().find("all_gather layers.3 1 bytes started, waiting"), std::string::npos);
    side->barrier("rank 0 has seen it", side->default_deadline());
    work.wait();
  }
  comm().barrier("together", comm().default_deadline());
  EXPECT_EQ(world.waiting_for(), "");
}

TEST_P(WorldOfRanks, KnowsItsPeers) {
  World& world = test_world();
  EXPECT_EQ(world.comm().size(), world.size());
  EXPECT_EQ(world.comm().rank(), world.rank());
  EXPECT_EQ(world.local_size(), world.size());  // one machine
  EXPECT_EQ(world.local_rank(), world.rank());
  EXPECT_FALSE(world.peer(0).host.empty());
  for (int r = 1; r < world.size(); ++r) EXPECT_NE(world.peer(r).pid, world.peer(0).pid);
  EXPECT_THROW(world.peer(world.size()), Error);
  EXPECT_FALSE(world.peer_failed());
}

TEST_P(WorldOfRanks, KeepsTheLast256Collectives) {
  Communicator& comm = test_world().comm();
  for (int i = 0; i < 300; ++i) {
    comm.broadcast({"turn." + std::to_string(i)}, {nullptr, Bytes{0}, 0}).wait();
  }
  const std::string dump = test_world().dump();
  EXPECT_EQ(std::count(dump.begin(), dump.end(), '\n'), 256);
  EXPECT_EQ(dump.find("turn.43 "), std::string::npos);
  EXPECT_NE(dump.find("broadcast turn.44 0 bytes done"), std::string::npos);
  EXPECT_NE(dump.find("turn.299 "), std::string::npos);
}

}  // namespace
}  // namespace k25::parallel
