#pragma once
// SHA-256 of each 64 MiB block of a file: hashing and checking run in parallel, and a reader
// verifies just the blocks it reads.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"

namespace k25::data {

inline constexpr std::int64_t kDigestBlock = std::int64_t{64} << 20;

struct FileDigest {
  std::int64_t size = 0;            ///< bytes
  std::vector<std::string> blocks;  ///< lower-case hex SHA-256, ceil(size / kDigestBlock) of them
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

/// Lower-case hex SHA-256.
std::string sha256_hex(std::string_view bytes);

/// Reads and hashes the whole file on up to `threads` threads.
FileDigest digest_file(const std::filesystem::path& path, ErrorKind kind, int threads = 1);

/// Checks size first ("expected 4096 bytes, has 4095: truncated or unfinished"), then the blocks
/// that overlap [begin, end) (the whole file by default). Throws `kind` naming path, block offset,
/// expected and actual SHA-256.
void verify_file(const std::filesystem::path& path, const FileDigest& expected, ErrorKind kind,
                 Bytes begin = {0}, Bytes end = {-1}, int threads = 1);

}  // namespace k25::data
