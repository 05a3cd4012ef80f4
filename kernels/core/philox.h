#pragma once
// Philox4x32-10: counter-based random numbers, the same on every backend and for every rank count.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/core/update_math.h"

namespace k25 {

/// FNV-1a, 64 bit: a stable number for a name (a parameter slice, a purpose).
constexpr std::uint64_t name_hash(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : name) {
    h ^= static_cast<unsigned char>(c);
    h *= 0x100000001b3ull;
  }
  return h;
}

/// Ten rounds over a 128-bit counter with a 64-bit key.
K25_HOST_DEVICE inline std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                               std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * counter[0];
    const std::uint64_t p1 = 0xCD9E8D57ull * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// A stream of draws keyed by (seed, step, name, index): draw i of the stream is a pure function.
/// Draw one kind of number from a stream: bits, uniform, normal and below share their bits.
class Philox {
 public:
  constexpr Philox(std::uint64_t seed, std::uint64_t step, std::string_view name)
      : seed_(seed), stream_(mix(name_hash(name) ^ mix(step))) {}

  /// 32 random bits for element `index`.
  K25_HOST_DEVICE std::uint32_t bits(std::uint64_t index) const {
    return block(index >> 2)[index & 3];
  }

  /// Uniform in (0, 1): 23 bits at the centres of their cells, never 0 and never 1.
  K25_HOST_DEVICE float uniform(std::uint64_t index) const {
    return (static_cast<float>(bits(index) >> 9) + 0.5f) * 0x1p-23f;
  }

  /// Standard normal, |x| < 5.5: the inverse distribution function of uniform(index).
  K25_HOST_DEVICE float normal(std::uint64_t index) const { return exact_normal(uniform(index)); }

  /// Uniform integer in [0, bound), bound > 0, by 64-bit multiply (bias below bound / 2^64).
  /// index < 2^63.
  K25_HOST_DEVICE std::uint64_t below(std::uint64_t index, std::uint64_t bound) const {
    const auto words = block(index >> 1);  // words 2 index and 2 index + 1 of the stream
    const std::size_t at = 2 * (index & 1);
    const std::uint64_t r = (static_cast<std::uint64_t>(words[at]) << 32) | words[at + 1];
    return static_cast<std::uint64_t>((static_cast<Wide>(r) * bound) >> 64);
  }

 private:
  __extension__ typedef unsigned __int128 Wide;

  /// Words 4 i to 4 i + 3 of the stream.
  K25_HOST_DEVICE std::array<std::uint32_t, 4> block(std::uint64_t i) const {
    return philox4x32(
        {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32),
         static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)},
        {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
  }

  static constexpr std::uint64_t mix(std::uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
  }

  std::uint64_t seed_;
  std::uint64_t stream_;
};

}  // namespace k25
