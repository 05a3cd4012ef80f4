#include "data/io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "tests/data/scratch_folder.h"

namespace k25::data {
namespace {

TEST(AtomicFile, WritesReplacesAndReadsBack) {
  const ScratchFolder folder;
  const std::string binary("a\0b\n\xff", 5);
  write_file_atomically(folder / "x", "old content that is longer", ErrorKind::kData);
  write_file_atomically(folder / "x", binary, ErrorKind::kData);
  EXPECT_EQ(read_file(folder / "x", ErrorKind::kData), binary);
  write_file_atomically(folder / "empty", "", ErrorKind::kData);
  EXPECT_EQ(read_file(folder / "empty", ErrorKind::kData), "");
  EXPECT_EQ(folder.entries(), 2);
}

TEST(AtomicFile, ReadsFilesWhoseSizeIsNotKnown) {
  EXPECT_NE(read_file("/proc/self/status", ErrorKind::kData).find("VmSize"), std::string::npos);
}

TEST(AtomicFile, NamesTheFileAndTheReason) {
  const ScratchFolder folder;
  expect_error(
      ErrorKind::kData, [&] { read_file(folder / "absent", ErrorKind::kData); },
      (folder / "absent").string(), "No such file or directory");
  expect_error(
      ErrorKind::kCheckpoint, [&] { read_file(folder.path(), ErrorKind::kCheckpoint); },
      folder.path().string(), "Is a directory");
  const auto message = expect_error(
      ErrorKind::kCheckpoint,
      [&] { write_file_atomically(folder / "no/x", "y", ErrorKind::kCheckpoint); },
      (folder / "no/x").string(), "No such file or directory");
  EXPECT_EQ(message.find("partial"), std::string::npos) << message;
}

TEST(AtomicFile, ReadsRegularFilesOnlyAndAtMostTheLimit) {
  const ScratchFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const auto& path : {folder / "pipe", std::filesystem::path("/dev/zero")}) {
    expect_error(
        ErrorKind::kUsage, [&] { read_file(path, ErrorKind::kUsage); },
        path.string() + ": is no regular file");
  }
  write_text(folder / "x", "1234");
  EXPECT_EQ(read_file(folder / "x", ErrorKind::kData, Bytes{4}), "1234");
  expect_error(
      ErrorKind::kData, [&] { read_file(folder / "x", ErrorKind::kData, Bytes{3}); },
      (folder / "x").string() + ": has 4 bytes, expected at most 3");
}

TEST(AtomicFile, NoSpaceKeepsTheOldFileAndLeavesNothing) {
  const ScratchFolder folder;
  write_file_atomically(folder / "x", "old", ErrorKind::kData);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto message = expect_error(
      ErrorKind::kCheckpoint,
      [&] { write_file_atomically(folder / "x", std::string(10000, 'n'), ErrorKind::kCheckpoint); },
      (folder / "x").string() + ":", "File too large");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(message.find("partial"), std::string::npos) << message;
  EXPECT_EQ(read_file(folder / "x", ErrorKind::kData), "old");
  EXPECT_EQ(folder.entries(), 1);
}

TEST(AtomicFile, BeforeTheRenameTheCallerMayStillRefuse) {
  const ScratchFolder folder;
  write_file_atomically(folder / "x", "old", ErrorKind::kData);
  expect_error(
      ErrorKind::kCheckpoint,
      [&] {
        write_file_atomically(folder / "x", "new", ErrorKind::kCheckpoint, [&] {
          EXPECT_EQ(folder.entries(), 2);
          fail(ErrorKind::kCheckpoint, "not ours any longer");
        });
      },
      "not ours any longer");
  EXPECT_EQ(read_file(folder / "x", ErrorKind::kData), "old");
  EXPECT_EQ(folder.entries(), 1);
}

TEST(AtomicFile, RenamesAFolderIntoPlace) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder / "a");
  write_text(folder / "a/f", "1");
  rename_durably(folder / "a", folder / "b", ErrorKind::kData);
  EXPECT_EQ(read_file(folder / "b/f", ErrorKind::kData), "1");
  EXPECT_EQ(folder.entries(), 1);
  std::filesystem::create_directory(folder / "c");
  write_text(folder / "c/f", "2");
  expect_error(
      ErrorKind::kData, [&] { rename_durably(folder / "c", folder / "b", ErrorKind::kData); },
      (folder / "b").string(), (folder / "c").string(), "not empty");
  EXPECT_EQ(read_file(folder / "b/f", ErrorKind::kData), "1");
  sync_folder(folder.path(), ErrorKind::kData);
  expect_error(
      ErrorKind::kData, [&] { sync_folder(folder / "gone", ErrorKind::kData); },
      (folder / "gone").string(), "No such file");
}

}  // namespace
}  // namespace k25::data
