#pragma once
// SHA-256 as a stream, and the block digests of a file whose bytes arrive in order. Internal to
// data/.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "data/io/block_digest.h"

namespace k25::data {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::span<const std::byte> bytes);
  /// Lower-case hex; starts anew.
  std::string finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// FileDigest of a byte stream.
class DigestStream {
 public:
  void update(std::span<const std::byte> bytes);
  std::int64_t position() const { return digest_.size; }
  FileDigest finish();

 private:
  Sha256 hash_;
  FileDigest digest_;
};

/// Runs body(i) for i in [0, count) on up to `threads` threads, the caller included. The exception
/// of the lowest failing i is rethrown, so that the message does not depend on timing.
void for_each_index(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body);

}  // namespace k25::data
