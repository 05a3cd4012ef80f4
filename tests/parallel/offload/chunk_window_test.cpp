#include "parallel/offload/chunk_window.h"

#include <gtest/gtest.h>

#include <memory>
#include <tuple>
#include <vector>

#include "granules.h"
#include "held_tier.h"
#include "tests/data/scratch_folder.h"

namespace k25::parallel {
namespace {

using data::expect_error;
using data::ScratchFolder;

class Passes : public testing::TestWithParam<std::tuple<int, int>> {};

// On a real file: each pass adds one to every chunk.
TEST_P(Passes, EveryChunkComesInOrderAndKeepsWhatWasWritten) {
  const auto [chunks, slots] = GetParam();
  const ScratchFolder folder;
  constexpr std::int64_t kGranules = 3;
  const Bytes chunk{kGranules * FileTier::kGranule.n};
  FileTier tier({.folder = folder.path(), .size = Bytes{chunks * chunk.n}});
  Mover mover(tier, chunk, chunks);
  const Granules memory(slots * kGranules);
  std::vector<std::span<std::byte>> parts;
  for (int s = 0; s < slots; ++s) parts.push_back(memory.part(s * kGranules, kGranules));
  ChunkWindow window(mover, parts);

  const auto pass = [&](int done, Change change) {
    for (int c = 0; c < chunks; ++c) {
      const std::span<std::byte> bytes = window.take();
      const std::byte want{static_cast<unsigned char>(done == 0 ? 0 : c + done)};
      ASSERT_EQ(bytes.front(), want) << "chunk " << c << " after " << done << " passes";
      ASSERT_EQ(bytes.back(), want);
      if (change == Change::kWritten) {
        std::fill(bytes.begin(), bytes.end(), std::byte(c + done + 1));
      }
      window.release(change);
    }
  };
  for (int done = 0; done < 3; ++done) pass(done, Change::kWritten);
  pass(3, Change::kNone);
  window.drain();
  for (int c = 0; c < chunks; ++c) EXPECT_EQ(mover.state(c), ChunkState::kAway);
  pass(3, Change::kWritten);  // from chunk 0 again
  window.take();              // in the middle of a pass
  window.release(Change::kNone);
  window.drain();
  pass(4, Change::kNone);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Passes,
                         testing::Values(std::tuple{7, 2}, std::tuple{7, 3}, std::tuple{6, 3},
                                         std::tuple{5, 3}, std::tuple{5, 4}, std::tuple{6, 4},
                                         std::tuple{7, 4}, std::tuple{4, 4}, std::tuple{2, 4},
                                         std::tuple{1, 2}));

// Three chunks through two slots: the second write ends before the one of the chunk that its slot
// wants next.
TEST(ChunkWindow, AChunkThatIsStillLeavingIsWaitedFor) {
  HeldTier tier(12, HeldTier::Mode::kWritesHeld);
  Mover mover(tier, Bytes{4}, 3);
  std::vector<std::byte> memory(8);
  ChunkWindow window(mover, {std::span(memory).first(4), std::span(memory).last(4)});
  using Log = std::vector<std::string>;
  const Log held{"read 0", "read 4", "write 0", "write 4"};
  for (const int value : {10, 11}) {
    const std::span<std::byte> bytes = window.take();
    std::fill(bytes.begin(), bytes.end(), std::byte(value));
    window.release(Change::kWritten);
  }
  EXPECT_EQ(tier.log, held);
  tier.end_one({}, 1);  // chunk 1 is away; its slot wants chunk 0, which is still leaving
  EXPECT_EQ(tier.log, held);
  EXPECT_EQ(mover.state(0), ChunkState::kLeaving);
  tier.end_one();  // chunk 0 is away: both slots go on, in order
  EXPECT_EQ(tier.log, (Log{"read 0", "read 4", "write 0", "write 4", "read 8", "read 0"}));
  EXPECT_EQ(window.take().front(), std::byte(0));
  window.release(Change::kNone);
  EXPECT_EQ(window.take().front(), std::byte(10));
  window.release(Change::kNone);
  window.drain();
}

struct Quick {
  HeldTier tier{12, HeldTier::Mode::kAtOnce};
  Mover mover{tier, Bytes{4}, 3};
  std::vector<std::byte> memory = std::vector<std::byte>(8);
  ChunkWindow window{mover, {std::span(memory).first(4), std::span(memory).last(4)}};

  void step(Change change) {
    window.take();
    window.release(change);
  }
};

TEST(ChunkWindow, TheNextChunksArriveAhead) {
  Quick q;
  EXPECT_TRUE(q.tier.log.empty());
  using Log = std::vector<std::string>;
  q.window.take();
  EXPECT_EQ(q.tier.log, (Log{"read 0", "read 4"}));
  q.tier.log.clear();
  q.window.release(Change::kWritten);
  EXPECT_EQ(q.tier.log, (Log{"write 0", "read 8"}));
  q.tier.log.clear();
  q.step(Change::kNone);  // the next pass's first chunk, nothing written
  EXPECT_EQ(q.tier.log, (Log{"read 0"}));
}

TEST(ChunkWindow, AChunkThatCannotArriveComesToTakeAndStays) {
  Quick q;
  q.tier.fails = "read 8";
  q.step(Change::kWritten);
  for (int i = 0; i < 2; ++i) {
    expect_error(ErrorKind::kCheckpoint, [&] { q.window.take(); }, "the disk is broken");
  }
  expect_error(ErrorKind::kCheckpoint, [&] { q.window.drain(); }, "the disk is broken");
}

TEST(ChunkWindow, AChunkThatCannotLeaveToo) {
  Quick q;
  q.tier.fails = "write 0";
  q.step(Change::kWritten);
  expect_error(ErrorKind::kCheckpoint, [&] { q.window.take(); }, "the disk is broken");
  expect_error(ErrorKind::kCheckpoint, [&] { q.window.drain(); }, "the disk is broken");
}

TEST(ChunkWindow, OneChunkAtATime) {
  Quick q;
  expect_error(ErrorKind::kUsage, [&] { q.window.release(Change::kNone); }, "a chunk is taken");
  q.window.take();
  expect_error(ErrorKind::kUsage, [&] { q.window.take(); }, "one chunk at a time");
  expect_error(ErrorKind::kUsage, [&] { q.window.drain(); }, "no chunk is taken");
}

}  // namespace
}  // namespace k25::parallel
