#include "data/sampler/permutation.h"

#include "fmt/format.h"
#include "kernels/core/check.h"
#include "kernels/core/philox.h"

namespace k25::data {

namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(std::int64_t n, std::uint64_t seed, std::uint64_t epoch,
                         std::string_view name)
    : n_(n) {
  while (half_bits_ < 31 && (std::int64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
  const Philox random(seed, epoch, name);
  for (std::size_t round = 0; round < keys_.size(); ++round) {
    keys_[round] =
        (static_cast<std::uint64_t>(random.bits(2 * round)) << 32) | random.bits(2 * round + 1);
  }
}

std::uint64_t Permutation::encrypt(std::uint64_t x) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = x >> half_bits_, right = x & mask;
  for (const std::uint64_t key : keys_) {
    const std::uint64_t next = left ^ (scramble(right + key) >> 33 & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::int64_t Permutation::at(std::int64_t i) const {
  K25_CHECK(i >= 0 && i < n_, fmt::format("element {} of a permutation of {}", i, n_));
  auto x = static_cast<std::uint64_t>(i);
  do {
    x = encrypt(x);
  } while (x >= static_cast<std::uint64_t>(n_));
  return static_cast<std::int64_t>(x);
}

}  // namespace k25::data
