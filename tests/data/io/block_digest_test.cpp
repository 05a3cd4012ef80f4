#include "data/io/block_digest.h"

#include <gtest/gtest.h>

#include "tests/data/scratch_folder.h"

namespace k25::data {
namespace {

// FIPS 180-2, appendix B; the last one is `printf '' | sha256sum`.
constexpr auto kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr auto kNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
// head -c 67108864 /dev/zero | sha256sum
constexpr auto kZeroBlock = "3b6a07d0d404fab4e23b6d34bc6696a6a312dd92821332385e5af7c01c421351";

TEST(BlockDigest, KnownAnswers) {
  EXPECT_EQ(sha256_hex("abc"), kAbc);
  EXPECT_EQ(sha256_hex(""), kNothing);
}

TEST(BlockDigest, SmallAndEmptyFiles) {
  const ScratchFolder folder;
  write_text(folder / "abc", "abc");
  write_text(folder / "empty", "");
  EXPECT_EQ(digest_file(folder / "abc", ErrorKind::kData), (FileDigest{3, {kAbc}}));
  EXPECT_EQ(digest_file(folder / "empty", ErrorKind::kData), (FileDigest{0, {}}));
  verify_file(folder / "empty", {0, {}}, ErrorKind::kData);
  expect_error(
      ErrorKind::kData, [&] { digest_file(folder / "no", ErrorKind::kData); },
      (folder / "no").string(), "No such file");
}

/// Two full blocks of zeros and one byte.
std::filesystem::path sparse_file(const ScratchFolder& folder) {
  write_text(folder / "big", "");
  std::filesystem::resize_file(folder / "big", 2 * kDigestBlock + 1);
  return folder / "big";
}

TEST(BlockDigest, BlocksAreTheSameForEveryThreadCount) {
  const ScratchFolder folder;
  const auto path = sparse_file(folder);
  const auto digest = digest_file(path, ErrorKind::kData, 1);
  ASSERT_EQ(digest.blocks.size(), 3u);
  EXPECT_EQ(digest.blocks[0], kZeroBlock);
  EXPECT_EQ(digest.blocks[1], kZeroBlock);
  EXPECT_EQ(digest.blocks[2], sha256_hex(std::string(1, '\0')));
  EXPECT_EQ(digest_file(path, ErrorKind::kData, 3), digest);
  EXPECT_EQ(digest_file(path, ErrorKind::kData, 64), digest);
}

TEST(BlockDigest, VerifiesJustTheBlocksThatARangeTouches) {
  const ScratchFolder folder;
  const auto path = sparse_file(folder);
  const FileDigest digest{2 * kDigestBlock + 1,
                          {kZeroBlock, kZeroBlock, sha256_hex(std::string(1, '\0'))}};
  verify_file(path, digest, ErrorKind::kCheckpoint, {0}, {-1}, 2);
  flip_byte(path, kDigestBlock + 7);
  verify_file(path, digest, ErrorKind::kCheckpoint, {0}, {kDigestBlock});
  verify_file(path, digest, ErrorKind::kCheckpoint, {2 * kDigestBlock}, {-1});
  verify_file(path, digest, ErrorKind::kCheckpoint, {5}, {5});
  for (const int threads : {1, 4}) {
    expect_error(
        ErrorKind::kCheckpoint,
        [&] { verify_file(path, digest, ErrorKind::kCheckpoint, {0}, {-1}, threads); },
        path.string(), "byte 67108864", std::string("expected SHA-256 ") + kZeroBlock);
  }
  expect_error(
      ErrorKind::kCheckpoint,
      [&] {
        verify_file(path, digest, ErrorKind::kCheckpoint, {kDigestBlock - 1}, {kDigestBlock + 1});
      },
      "byte 67108864");
}

TEST(BlockDigest, TheFirstDamagedBlockIsNamedWhateverTheThreads) {
  const ScratchFolder folder;
  const auto path = sparse_file(folder);
  const FileDigest digest{2 * kDigestBlock + 1, {kAbc, kAbc, kAbc}};
  for (int repeat = 0; repeat < 3; ++repeat) {
    expect_error(
        ErrorKind::kData, [&] { verify_file(path, digest, ErrorKind::kData, {0}, {-1}, 3); },
        "byte 0 ", kZeroBlock);
  }
}

TEST(BlockDigest, SizeComesFirst) {
  const ScratchFolder folder;
  write_text(folder / "x", std::string(4095, 'x'));
  const FileDigest digest{4096, {kAbc}};
  expect_error(
      ErrorKind::kData, [&] { verify_file(folder / "x", digest, ErrorKind::kData); },
      (folder / "x").string(), "expected 4096 bytes, has 4095: truncated or unfinished");
  expect_error(
      ErrorKind::kData, [&] { verify_file(folder / "x", {4094, {kAbc}}, ErrorKind::kData); },
      "expected 4094 bytes, has 4095");
  expect_error(
      ErrorKind::kData, [&] { verify_file(folder / "x", {4095, {kAbc, kAbc}}, ErrorKind::kData); },
      "2 block digests", "expected 1");
}

}  // namespace
}  // namespace k25::data
