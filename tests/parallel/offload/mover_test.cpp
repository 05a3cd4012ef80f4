#include "parallel/offload/mover.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "held_tier.h"
#include "tests/data/scratch_folder.h"

namespace k25::parallel {
namespace {

using data::expect_error;

const Error kBroken(ErrorKind::kCheckpoint, "the disk is broken");

struct Bench {
  HeldTier tier{12};
  Mover mover{tier, Bytes{4}, 3};
  std::vector<std::byte> memory = std::vector<std::byte>(4);
};

TEST(Mover, AChunkGoesThereAndBackAndItsStateWithIt) {
  Bench b;
  b.tier.content[4] = std::byte{7};
  EXPECT_EQ(b.mover.state(1), ChunkState::kAway);
  int called = 0;
  ChunkState seen = ChunkState::kAway;
  Work token = b.mover.arrive(1, b.memory, [&](const std::optional<Error>& error) {
    EXPECT_FALSE(error);
    ++called;
    seen = b.mover.state(1);
  });
  EXPECT_EQ(b.mover.state(1), ChunkState::kArriving);
  EXPECT_FALSE(token.done());
  EXPECT_FALSE(token.wait(Clock::now() + std::chrono::milliseconds(1)));
  b.tier.end_one();
  EXPECT_EQ(called, 1);
  EXPECT_EQ(seen, ChunkState::kHere);  // changed before the callback
  EXPECT_TRUE(token.done());
  token.wait();
  EXPECT_EQ(b.memory[0], std::byte{7});

  b.memory[0] = std::byte{9};
  Work back = b.mover.leave(1, b.memory);
  EXPECT_EQ(b.mover.state(1), ChunkState::kLeaving);
  b.tier.end_one();
  back.wait();
  EXPECT_EQ(b.mover.state(1), ChunkState::kAway);
  EXPECT_EQ(b.tier.content[4], std::byte{9});
  EXPECT_EQ(b.mover.state(0), ChunkState::kAway);
}

TEST(Mover, ADroppedChunkIsNotWritten) {
  Bench b;
  b.mover.arrive(2, b.memory);
  b.tier.end_one();
  b.memory[0] = std::byte{1};
  b.mover.drop(2);
  EXPECT_EQ(b.mover.state(2), ChunkState::kAway);
  EXPECT_TRUE(b.tier.calls.empty());
  EXPECT_EQ(b.tier.content[8], std::byte{0});
}

TEST(Mover, AFailedMovePutsTheChunkBackAndTellsBoth) {
  Bench b;
  std::optional<Error> told;
  const auto tell = [&](const std::optional<Error>& error) { told = error; };
  Work in = b.mover.arrive(0, b.memory, tell);
  b.tier.end_one(kBroken);
  EXPECT_EQ(b.mover.state(0), ChunkState::kAway);
  ASSERT_TRUE(told);
  EXPECT_STREQ(told->what(), "the disk is broken");
  expect_error(ErrorKind::kCheckpoint, [&] { in.wait(); }, "the disk is broken");
  expect_error(ErrorKind::kCheckpoint, [&] { in.done(); }, "the disk is broken");

  b.mover.arrive(0, b.memory);
  b.tier.end_one();
  told.reset();
  Work out = b.mover.leave(0, b.memory, tell);
  b.tier.end_one(kBroken);
  EXPECT_EQ(b.mover.state(0), ChunkState::kHere);  // the memory is still right
  EXPECT_TRUE(told);
  b.mover.leave(0, b.memory);
  b.tier.end_one();
  EXPECT_EQ(b.mover.state(0), ChunkState::kAway);
}

TEST(Mover, RefusesMovesFromTheWrongState) {
  Bench b;
  expect_error(
      ErrorKind::kInternal, [&] { b.mover.leave(0, b.memory); }, "chunk 0 is away, expected here");
  expect_error(ErrorKind::kInternal, [&] { b.mover.drop(0); }, "chunk 0 is away, expected here");
  b.mover.arrive(0, b.memory);
  expect_error(
      ErrorKind::kInternal, [&] { b.mover.arrive(0, b.memory); },
      "chunk 0 is arriving, expected away");
  b.tier.end_one();
  expect_error(
      ErrorKind::kInternal, [&] { b.mover.arrive(0, b.memory); }, "chunk 0 is here, expected away");
  b.mover.leave(0, b.memory);
  expect_error(ErrorKind::kInternal, [&] { b.mover.drop(0); }, "chunk 0 is leaving, expected here");
  b.tier.end_one();
  std::vector<std::byte> small(3);
  expect_error(ErrorKind::kUsage, [&] { b.mover.arrive(0, small); }, "memory of one chunk");
  EXPECT_EQ(b.mover.state(0), ChunkState::kAway);
}

TEST(Mover, ACallbackMayStartTheNextMove) {
  Bench b;
  std::vector<std::byte> other(4);
  b.mover.arrive(0, b.memory, [&](const std::optional<Error>&) { b.mover.arrive(1, other); });
  b.tier.end_one();
  EXPECT_EQ(b.mover.state(1), ChunkState::kArriving);
  b.tier.end_one();
  EXPECT_EQ(b.mover.state(1), ChunkState::kHere);
}

TEST(Mover, ItsEndWaitsForWhatIsInFlight) {
  HeldTier tier(4);
  std::vector<std::byte> memory(4);
  std::atomic<bool> called = false;
  std::thread later;
  {
    Mover mover(tier, Bytes{4}, 1);
    mover.arrive(0, memory, [&](const std::optional<Error>&) { called = true; });
    later = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      tier.end_one();
    });
  }
  EXPECT_TRUE(called);
  later.join();
}

}  // namespace
}  // namespace k25::parallel
