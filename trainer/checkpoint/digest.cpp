#include "trainer/checkpoint/digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "data/io/h5_layout.h"
#include "kernels/core/philox.h"
#include "trainer/checkpoint/checkpoint.h"

namespace k25::trainer {
namespace {

std::uint64_t mix(std::uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

std::string combine(const TensorDigests& d) { return data::sha256_hex(d.master + d.m + d.v); }

}  // namespace

void DigestSums::add(std::size_t unit_index, const std::string& unit, int tensor,
                     std::int64_t begin, const float* values, std::int64_t count) {
  const std::uint64_t key = name_hash(dataset_name(unit, kTensorNames[tensor]));
  const std::uint64_t keys[] = {mix(key), mix(~key)};
  std::uint64_t* sums = &sums_[(unit_index * 3 + static_cast<std::size_t>(tensor)) * 2];
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint64_t>(begin + i);
    const std::uint64_t word =
        (index << 32 | index >> 32) ^ std::bit_cast<std::uint32_t>(values[i]);
    sums[0] += mix(word + keys[0]);
    sums[1] += mix(word + keys[1]);
  }
}

void DigestSums::add_ranks(parallel::Communicator& comm) {
  const std::size_t n = sums_.size();
  std::vector<std::uint64_t> all(n * static_cast<std::size_t>(comm.size()));
  std::memcpy(all.data() + n * static_cast<std::size_t>(comm.rank()), sums_.data(), n * 8);
  comm.all_gather({.name = "state digest"}, {all.data(), Bytes{static_cast<std::int64_t>(n) * 8}})
      .wait();
  for (std::size_t i = 0; i < n; ++i) {
    sums_[i] = 0;
    for (std::size_t r = 0; r < all.size(); r += n) sums_[i] += all[r + i];
  }
}

TensorDigests DigestSums::finish() const {
  std::string bytes[3];
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    bytes[(i / 2) % 3].append(reinterpret_cast<const char*>(&sums_[i]), 8);
  }
  return {data::sha256_hex(bytes[0]), data::sha256_hex(bytes[1]), data::sha256_hex(bytes[2])};
}

TensorDigests digest_store(parallel::Mesh& mesh, parallel::ZeroStore& store) {
  DigestSums sums(static_cast<std::size_t>(store.num_units()));
  for (int u = 0; u < store.num_units(); ++u) {
    const parallel::UnitLayout& layout = store.layout(u);
    const parallel::ZeroStore::Range owned = store.owned(u);
    const std::int64_t begin = store.shard_begin(u) + owned.begin;
    const std::int64_t length = std::clamp<std::int64_t>(layout.numel - begin, 0, owned.length);
    std::vector<float> copies[3];
    for (std::int64_t at = 0; at < length; at += kStatePiece) {
      const std::int64_t n = std::min(kStatePiece, length - at);
      for (std::vector<float>& copy : copies) copy.resize(static_cast<std::size_t>(n));
      store.read_state(u, owned.begin + at, {.master = copies[0], .m = copies[1], .v = copies[2]});
      for (int t = 0; t < 3; ++t) {
        sums.add(static_cast<std::size_t>(u), layout.name, t, begin + at, copies[t].data(), n);
      }
    }
  }
  sums.add_ranks(mesh.shard_comm());
  return sums.finish();
}

std::string state_digest(parallel::Mesh& mesh, parallel::ZeroStore& store) {
  return combine(digest_store(mesh, store));
}

std::string state_digest_of_files(const std::filesystem::path& folder) {
  const Manifest manifest = read_manifest(folder);
  verify_checkpoint(folder);
  std::vector<data::H5File> files;
  for (const ManifestFile& file : manifest.files) {
    files.emplace_back(folder / file.name, ErrorKind::kCheckpoint);
  }
  DigestSums sums(manifest.units.size());
  for (std::size_t u = 0; u < manifest.units.size(); ++u) {
    for (const ManifestRange& range : manifest.units[u].ranges) {
      for (int t = 0; t < 3; ++t) {
        const auto values = files[static_cast<std::size_t>(range.file)].values<float>(
            dataset_name(manifest.units[u].name, kTensorNames[t]), data::H5Type::kF32);
        sums.add(u, manifest.units[u].name, t, range.begin, values.data(), range.length);
      }
    }
  }
  return combine(sums.finish());
}

}  // namespace k25::trainer
