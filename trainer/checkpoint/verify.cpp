// Checking a checkpoint's bytes against its digests, alone or by all ranks together.

#include <fmt/format.h>

#include <algorithm>

#include "data/io/block_digest.h"
#include "data/io/h5_layout.h"
#include "parallel/comm/agree.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/manifest.h"

namespace k25::trainer {
namespace {

struct Block {
  const ManifestFile* file = nullptr;
  std::int64_t index = 0;
};

std::vector<Block> blocks_of(const Manifest& manifest) {
  std::vector<Block> blocks;
  for (const ManifestFile& file : manifest.files) {
    const auto count = static_cast<std::int64_t>(file.digest.blocks.size());
    // A file without blocks is looked at too: its size may be wrong.
    for (std::int64_t i = 0; i < std::max<std::int64_t>(count, 1); ++i)
      blocks.push_back({&file, i});
  }
  return blocks;
}

}  // namespace

void require_datasets(const std::filesystem::path& folder, const Manifest& manifest,
                      std::size_t index) {
  const std::filesystem::path path = folder / manifest.files[index].name;
  const data::H5File file(path, ErrorKind::kCheckpoint);
  for (const ManifestUnit& unit : manifest.units) {
    for (const ManifestRange& range : unit.ranges) {
      if (static_cast<std::size_t>(range.file) != index) continue;
      for (const char* tensor : kTensorNames) {
        const std::string name = dataset_name(unit.name, tensor);
        const auto bytes = file.dataset(name, data::H5Type::kF32).bytes();
        if (bytes == range.length * 4) continue;
        fail(ErrorKind::kCheckpoint,
             fmt::format("{}: dataset {} has {} bytes, the manifest says {}", path.string(), name,
                         bytes, range.length * 4));
      }
    }
  }
}

void verify_checkpoint(const std::filesystem::path& folder, int threads) {
  const Manifest manifest = read_manifest(folder);
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    data::verify_file(folder / file.name, file.digest, ErrorKind::kCheckpoint, {0}, {-1}, threads);
    require_datasets(folder, manifest, i);
  }
}

void verify_together(parallel::Communicator& comm, const std::filesystem::path& folder) {
  // Between two agreements a rank reads at most this many blocks of 64 MiB, so that none waits long
  // enough for the others to look lost.
  constexpr std::size_t kBlocksPerRound = 16;
  Manifest manifest;
  parallel::collectively(comm, "verify checkpoint", [&] { manifest = read_manifest(folder); });
  const std::vector<Block> blocks = blocks_of(manifest);
  const auto ranks = static_cast<std::size_t>(comm.size());
  for (std::size_t begin = 0; begin < blocks.size(); begin += ranks * kBlocksPerRound) {
    const std::size_t end = std::min(begin + ranks * kBlocksPerRound, blocks.size());
    parallel::collectively(comm, "verify checkpoint", [&] {
      for (std::size_t i = begin + static_cast<std::size_t>(comm.rank()); i < end; i += ranks) {
        const Block& block = blocks[i];
        data::verify_file(folder / block.file->name, block.file->digest, ErrorKind::kCheckpoint,
                          {block.index * data::kDigestBlock},
                          {(block.index + 1) * data::kDigestBlock});
      }
    });
  }
  parallel::collectively(comm, "verify checkpoint", [&] {
    for (auto i = static_cast<std::size_t>(comm.rank()); i < manifest.files.size(); i += ranks) {
      require_datasets(folder, manifest, i);
    }
  });
}

}  // namespace k25::trainer
