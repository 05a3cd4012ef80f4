#include "parallel/offload/file_engine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <latch>
#include <string>
#include <vector>

#include "tests/data/scratch_folder.h"

namespace k25::parallel {
namespace {

using data::ScratchFolder;

TEST(FileRequest, AdvancesByWhatWasMovedAndEndsWithTheLastByte) {
  std::byte memory[8]{};
  FileRequest request{.offset = 100, .memory = memory, .left = 8};
  std::optional<Error> error;
  EXPECT_FALSE(advance(request, 3, "f", error));
  EXPECT_EQ(request.offset, 103);
  EXPECT_EQ(request.memory, memory + 3);
  EXPECT_EQ(request.left, 5);
  EXPECT_FALSE(advance(request, -EINTR, "f", error));
  EXPECT_FALSE(advance(request, -EAGAIN, "f", error));
  EXPECT_EQ(request.left, 5);
  EXPECT_TRUE(advance(request, 5, "f", error));
  EXPECT_FALSE(error);
}

TEST(FileRequest, ErrorsNameFileBytesAndOffset) {
  FileRequest request{.kind = FileRequest::Kind::kWrite, .offset = 100, .left = 8};
  std::optional<Error> error;
  EXPECT_TRUE(advance(request, -EIO, "/disk", error));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::kCheckpoint);
  EXPECT_STREQ(error->what(), "/disk: cannot write 8 bytes at offset 100: Input/output error");
}

/// The errors of one request on an engine, by each way that this machine has.
std::vector<std::string> messages(int fd, FileRequest::Kind kind, std::int64_t bytes) {
  std::vector<std::string> all;
  std::vector<std::unique_ptr<FileEngine>> engines;
  engines.push_back(make_thread_engine(fd, "/disk", 2));
  if (auto ring = make_uring_engine(fd, "/disk", 2)) engines.push_back(std::move(ring));
  std::vector<std::byte> memory(static_cast<std::size_t>(bytes));
  for (auto& engine : engines) {
    std::latch ended(1);
    engine->submit({.kind = kind,
                    .memory = memory.data(),
                    .left = bytes,
                    .done = [&](const std::optional<Error>& error) {
                      all.emplace_back(error ? error->what() : "");
                      ended.count_down();
                    }});
    ended.wait();
  }
  return all;
}

TEST(FileEngine, WhatTheKernelRefusesComesToDone) {
  const ScratchFolder folder;
  data::write_text(folder / "f", "12345678");
  const int fd = ::open((folder / "f").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  for (const std::string& text : messages(fd, FileRequest::Kind::kWrite, 4)) {
    EXPECT_EQ(text, "/disk: cannot write 4 bytes at offset 0: Bad file descriptor");
  }
  for (const std::string& text : messages(fd, FileRequest::Kind::kRead, 8)) EXPECT_EQ(text, "");
  // Eight bytes come, then the file ends.
  for (const std::string& text : messages(fd, FileRequest::Kind::kRead, 12)) {
    EXPECT_EQ(text, "/disk: cannot read 4 bytes at offset 8: the file ends there");
  }
  ::close(fd);
}

}  // namespace
}  // namespace k25::parallel
