#include "parallel/offload/file_tier.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <deque>
#include <filesystem>
#include <latch>
#include <string>
#include <vector>

#include "granules.h"
#include "tests/data/scratch_folder.h"

namespace k25::parallel {
namespace {

using data::expect_error;
using data::ScratchFolder;

constexpr std::int64_t kG = FileTier::kGranule.n;

/// Waits for one call.
template <class Call>
std::optional<Error> outcome(const Call& call) {
  std::latch ended(1);
  std::optional<Error> error;
  call([&](const std::optional<Error>& e) {
    error = e;
    ended.count_down();
  });
  ended.wait();
  return error;
}

class FileTierTest : public testing::TestWithParam<FileEngineKind> {
 protected:
  FileTierOptions options(std::int64_t granules) const {
    return {
        .folder = folder_.path(), .size = Bytes{granules * kG}, .engine = GetParam(), .depth = 4};
  }
  ScratchFolder folder_;
};

TEST_P(FileTierTest, WhatWasWrittenComesBackAndTheRestIsZero) {
  FileTier tier(options(6));
  const Granules written(3, 0xa5), read(6, 0xff);
  EXPECT_FALSE(outcome([&](auto done) { tier.write(Bytes{2 * kG}, written.span(), done); }));
  EXPECT_FALSE(outcome([&](auto done) { tier.read(Bytes{0}, read.span(), done); }));
  for (std::int64_t g = 0; g < 6; ++g) {
    const std::byte want{static_cast<unsigned char>(g >= 2 && g < 5 ? 0xa5 : 0)};
    for (const std::byte b : read.part(g, 1)) ASSERT_EQ(b, want) << "granule " << g;
  }
}

TEST_P(FileTierTest, HasNoName) {
  const FileTier tier(options(1));
  EXPECT_EQ(folder_.entries(), 0);
}

TEST_P(FileTierTest, ManyAtOnceAndMoreFromWithinDone) {
  constexpr int kChunks = 64;
  std::deque<Granules> memory;
  for (int c = 0; c < kChunks; ++c) memory.emplace_back(2, static_cast<unsigned char>(c + 1));
  const Granules back(2 * kChunks, 0);
  std::latch ended(kChunks);
  {
    FileTier tier(options(2 * kChunks));
    for (int c = 0; c < kChunks; ++c) {
      const Bytes at{2 * c * kG};
      tier.write(at, memory[c].span(), [&, c, at](const std::optional<Error>& error) {
        EXPECT_FALSE(error);
        tier.read(at, back.part(2 * c, 2), [&](const std::optional<Error>& again) {
          EXPECT_FALSE(again);
          ended.count_down();
        });
      });
    }
  }  // waits for all of them
  EXPECT_TRUE(ended.try_wait());
  for (int c = 0; c < kChunks; ++c) {
    for (const std::byte b : back.part(2 * c, 2)) ASSERT_EQ(b, std::byte(c + 1));
  }
}

TEST_P(FileTierTest, RefusesWhatIsNotInsideItOrNotWhole) {
  FileTier tier(options(4));
  const Granules memory(5);
  const auto refused = [&](std::int64_t offset, std::span<std::byte> to) {
    expect_error(ErrorKind::kInternal, [&] { tier.read(Bytes{offset}, to, {}); }, "not inside it");
    expect_error(
        ErrorKind::kInternal, [&] { tier.write(Bytes{offset}, to, {}); },
        std::to_string(offset) + " of a tier of 16384");
  };
  refused(0, memory.part(0, 5));
  refused(4 * kG, memory.part(0, 1));
  refused(-kG, memory.part(0, 1));
  refused(512, memory.part(0, 1));
  refused(0, memory.span().subspan(512, kG));
  refused(0, memory.span().first(512));
  refused(0, {});
}

TEST_P(FileTierTest, AFolderThatCannotHoldItIsToldAtOnce) {
  FileTierOptions missing = options(1);
  missing.folder /= "none";
  expect_error(
      ErrorKind::kUsage, [&] { FileTier tier(missing); },
      missing.folder.string() + ": cannot hold 4096 bytes", "No such file or directory",
      "give a folder of a local disk");

  FileTierOptions file = options(1);
  file.folder /= "file";
  data::write_text(file.folder, "x");
  expect_error(ErrorKind::kUsage, [&] { FileTier tier(file); }, "Not a directory");

  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = kG;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error(ErrorKind::kUsage, [&] { FileTier tier(options(2)); }, "File too large");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);

  const auto huge = static_cast<std::int64_t>(std::filesystem::space(folder_.path()).capacity);
  expect_error(
      ErrorKind::kUsage, [&] { FileTier tier(options(2 * huge / kG)); }, "No space left on device",
      "bytes free");
  EXPECT_EQ(folder_.entries(), 1);  // "file"
}

std::string name_of(const testing::TestParamInfo<FileEngineKind>& info) {
  return info.param == FileEngineKind::kUring ? "uring" : "threads";
}
INSTANTIATE_TEST_SUITE_P(Threads, FileTierTest, testing::Values(FileEngineKind::kThreads), name_of);

bool has_uring() {
  const ScratchFolder folder;
  const FileTier tier({.folder = folder.path(), .size = Bytes{kG}});
  return tier.engine() == "io_uring";
}
// A container may forbid io_uring; then no ring is what must come out.
INSTANTIATE_TEST_SUITE_P(Best, FileTierTest, testing::Values(FileEngineKind::kAuto),
                         [](auto&) { return "best"; });

TEST(FileTier, AskingForIoUringGivesItOrSaysThatThereIsNone) {
  const ScratchFolder folder;
  const FileTierOptions asked{
      .folder = folder.path(), .size = Bytes{kG}, .engine = FileEngineKind::kUring};
  if (has_uring()) {
    EXPECT_EQ(FileTier(asked).engine(), "io_uring");
  } else {
    expect_error(ErrorKind::kUsage, [&] { FileTier tier(asked); }, "io_uring was asked for");
  }
}

}  // namespace
}  // namespace k25::parallel
