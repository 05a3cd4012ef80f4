#pragma once
// A random order of [0, n) without storing it. Internal to data/.

#include <array>
#include <cstdint>
#include <string_view>

namespace k25::data {

/// A permutation of [0, n) drawn by Philox(seed, epoch, name): a Feistel network over the smallest
/// even number of bits that holds n, walked until it lands inside [0, n) (Black and Rogaway,
/// "Ciphers with arbitrary finite domains", CT-RSA 2002). at(i) takes less than four steps on
/// average.
class Permutation {
 public:
  Permutation(std::int64_t n, std::uint64_t seed, std::uint64_t epoch, std::string_view name);
  std::int64_t at(std::int64_t i) const;

 private:
  static constexpr int kRounds = 8;
  std::uint64_t encrypt(std::uint64_t x) const;

  std::int64_t n_;
  int half_bits_ = 1;
  std::array<std::uint64_t, kRounds> keys_{};
};

}  // namespace k25::data
