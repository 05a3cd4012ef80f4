#include "data/io/block_digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "data/io/file_handle.h"
#include "data/io/sha256.h"
#include "fmt/format.h"

namespace k25::data {

namespace {

constexpr std::int64_t kReadBytes = std::int64_t{1} << 20;

std::int64_t block_count(std::int64_t size) { return (size + kDigestBlock - 1) / kDigestBlock; }

std::string digest_block(const FileHandle& file, std::int64_t block, std::int64_t size) {
  const std::int64_t end = std::min(size, (block + 1) * kDigestBlock);
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min(kReadBytes, end - block * kDigestBlock)));
  Sha256 hash;
  for (std::int64_t at = block * kDigestBlock; at < end;) {
    const auto n = std::min<std::int64_t>(static_cast<std::int64_t>(buffer.size()), end - at);
    const auto part = std::span(buffer).first(static_cast<std::size_t>(n));
    file.read(at, part);
    hash.update(part);
    at += n;
  }
  return hash.finish();
}

}  // namespace

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  Impl() { restart(); }
  ~Impl() { EVP_MD_CTX_free(context); }
  void restart() {
    if (context == nullptr || EVP_DigestInit_ex(context, EVP_sha256(), nullptr) != 1) {
      fail(ErrorKind::kInternal, "OpenSSL cannot start SHA-256");
    }
  }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  if (EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()) != 1) {
    fail(ErrorKind::kInternal, "OpenSSL cannot continue SHA-256");
  }
}

std::string Sha256::finish() {
  unsigned char raw[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  if (EVP_DigestFinal_ex(impl_->context, raw, &length) != 1) {
    fail(ErrorKind::kInternal, "OpenSSL cannot finish SHA-256");
  }
  impl_->restart();
  std::string hex;
  for (unsigned int i = 0; i < length; ++i) hex += fmt::format("{:02x}", raw[i]);
  return hex;
}

void DigestStream::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::int64_t room = kDigestBlock - digest_.size % kDigestBlock;
    const auto part = bytes.first(static_cast<std::size_t>(
        std::min<std::int64_t>(room, static_cast<std::int64_t>(bytes.size()))));
    hash_.update(part);
    digest_.size += static_cast<std::int64_t>(part.size());
    bytes = bytes.subspan(part.size());
    if (digest_.size % kDigestBlock == 0) digest_.blocks.push_back(hash_.finish());
  }
}

FileDigest DigestStream::finish() {
  if (digest_.size % kDigestBlock != 0) digest_.blocks.push_back(hash_.finish());
  return std::exchange(digest_, {});
}

void for_each_index(std::int64_t count, int threads,
                    const std::function<void(std::int64_t)>& body) {
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::int64_t failed = std::numeric_limits<std::int64_t>::max();
  std::exception_ptr error;
  const auto work = [&] {
    for (std::int64_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (i < failed) {
          failed = i;
          error = std::current_exception();
        }
        next = count;  // indices below i have been taken already: they finish and may win
        return;
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (std::int64_t t = 1; t < std::min<std::int64_t>(threads, count); ++t) {
      helpers.emplace_back(work);
    }
    work();
  }
  if (error) std::rethrow_exception(error);
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(bytes)));
  return hash.finish();
}

FileDigest digest_file(const std::filesystem::path& path, ErrorKind kind, int threads) {
  const auto file = FileHandle::open_to_read(path, kind);
  FileDigest digest;
  digest.size = file.size();
  digest.blocks.resize(static_cast<std::size_t>(block_count(digest.size)));
  for_each_index(block_count(digest.size), threads, [&](std::int64_t block) {
    digest.blocks[static_cast<std::size_t>(block)] = digest_block(file, block, digest.size);
  });
  return digest;
}

void verify_file(const std::filesystem::path& path, const FileDigest& expected, ErrorKind kind,
                 Bytes begin, Bytes end, int threads) {
  const auto file = FileHandle::open_to_read(path, kind);
  const std::int64_t size = file.size();
  if (size != expected.size) {
    fail(kind, fmt::format("{}: expected {} bytes, has {}: {}", path.string(), expected.size, size,
                           size < expected.size ? "truncated or unfinished"
                                                : "written to after it was finished"));
  }
  if (static_cast<std::int64_t>(expected.blocks.size()) != block_count(size)) {
    fail(kind, fmt::format("{}: {} block digests are listed for {} bytes, expected {}",
                           path.string(), expected.blocks.size(), size, block_count(size)));
  }
  const std::int64_t stop = end.n < 0 ? size : std::min(end.n, size);
  if (begin.n < 0 || begin.n >= stop) return;
  const std::int64_t first = begin.n / kDigestBlock;
  for_each_index(block_count(stop) - first, threads, [&](std::int64_t i) {
    const auto& want = expected.blocks[static_cast<std::size_t>(first + i)];
    const std::string have = digest_block(file, first + i, size);
    if (have != want) {
      fail(kind, fmt::format("{}: the block at byte {} is damaged: expected SHA-256 {}, has {}",
                             path.string(), (first + i) * kDigestBlock, want, have));
    }
  });
}

}  // namespace k25::data
