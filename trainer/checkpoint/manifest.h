#pragma once
// The manifest of a checkpoint: what is where, and the digests it is checked against. Private to
// this folder.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/io/block_digest.h"
#include "parallel/zero/unit.h"
#include "trainer/checkpoint/state.h"

namespace k25::trainer {

struct ManifestRange {
  int file = 0;                        ///< index into Manifest::files
  std::int64_t begin = 0, length = 0;  ///< elements of the unit's flat buffer
};

struct ManifestParameter {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;
  friend bool operator==(const ManifestParameter&, const ManifestParameter&) = default;
};

struct ManifestUnit {
  std::string name;
  std::int64_t numel = 0;
  std::vector<ManifestParameter> parameters;
  std::vector<ManifestRange> ranges;
};

struct ManifestFile {
  std::string name;
  data::FileDigest digest;
};

/// Layout-independent digests of the three tensors of all units (checkpoint.h, state_digest).
struct TensorDigests {
  std::string master, m, v;
  friend bool operator==(const TensorDigests&, const TensorDigests&) = default;
};

struct Manifest {
  TrainState state;
  std::string config;
  std::vector<ManifestUnit> units;
  std::vector<ManifestFile> files;
  TensorDigests digests;
};

inline constexpr const char* kManifestName = "manifest.json";

/// Ends with the SHA-256 of the rest.
std::string to_json(const Manifest& manifest);
/// Throws kCheckpoint: missing ("unfinished"), unreadable, bad JSON, unknown format or version,
/// content that does not have the SHA-256 it says, another step than a folder step-N is named for.
Manifest read_manifest(const std::filesystem::path& folder);
/// Throws kCheckpoint when the folder holds another step than it is named for; says nothing about
/// what is missing or damaged.
void require_own_step(const std::filesystem::path& folder);

/// Every dataset that the manifest expects in its files[index] is there with its type and length;
/// otherwise kCheckpoint naming file and dataset. The file's bytes must have been verified.
void require_datasets(const std::filesystem::path& folder, const Manifest& manifest,
                      std::size_t index);

ManifestUnit describe_unit(const parallel::UnitLayout& layout);

/// "rank-00003.h5" and "/units/layers.3/master".
std::string shard_file_name(int index);
std::string dataset_name(const std::string& unit, const std::string& tensor);

/// Elements of a state tensor that are in memory at a time beside it.
inline constexpr std::int64_t kStatePiece = std::int64_t{1} << 22;

inline constexpr const char* kTensorNames[] = {"master", "m", "v"};

}  // namespace k25::trainer
