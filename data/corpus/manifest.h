#pragma once
// manifest.json of a corpus. Internal to data/corpus.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus/corpus.h"
#include "data/io/block_digest.h"
#include "data/io/h5_layout.h"

namespace k25::data {

inline constexpr std::int64_t kManifestVersion = 1;
/// Larger vocabularies get u32 tokens.
inline constexpr std::int64_t kMaxVocabU16 = 65535;

struct ManifestFile {
  std::string name;  ///< inside the corpus folder
  std::int64_t tokens = 0, documents = 0;
  FileDigest digest;
};

struct Manifest {
  CorpusInfo info;
  H5Type token_type = H5Type::kU16;
  std::vector<ManifestFile> files;
  std::string tokenizer;  ///< file name inside the corpus folder
  FileDigest tokenizer_digest;
};

/// Throws kData naming `path` and the key.
Manifest read_manifest(const std::filesystem::path& path);

/// Text of the file; fills in info.digest.
std::string format_manifest(Manifest& manifest);

}  // namespace k25::data
