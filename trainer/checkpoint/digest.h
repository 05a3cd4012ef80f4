#pragma once
// Digests of master, m and v that do not depend on how they are sharded: for each unit and tensor
// the sum, modulo 2^64, of mix(key, element index, bits) over its elements, under two keys. Private
// to this folder.

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/zero/zero_store.h"
#include "trainer/checkpoint/manifest.h"

namespace k25::trainer {

/// Adds `count` elements that start at flat index `begin` of `unit`'s `tensor` to `sums`.
class DigestSums {
 public:
  explicit DigestSums(std::size_t units) : sums_(units * 3 * 2, 0) {}
  void add(std::size_t unit_index, const std::string& unit, int tensor, std::int64_t begin,
           const float* values, std::int64_t count);
  /// Collective over `comm`: every rank's sums are added.
  void add_ranks(parallel::Communicator& comm);
  TensorDigests finish() const;

 private:
  std::vector<std::uint64_t> sums_;
};

/// Collective. The digests of this world's state.
TensorDigests digest_store(parallel::Mesh& mesh, parallel::ZeroStore& store);

}  // namespace k25::trainer
