#pragma once
// DeepSpeed's config schema as a table: each key's path, type, and what becomes of it here. The
// table is the only list; docs/coming-from-deepspeed.md is compared with it by a test.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace k25::trainer {

enum class DsType : std::uint8_t { kBool, kInteger, kNumber, kText, kList, kMap, kAny };

enum class DsFate : std::uint8_t {
  kMapped,    ///< becomes keys of ours (detail: which), by code in mapping.cpp
  kNoEffect,  ///< any value: it changes nothing here, the note says why
  kRefused,   ///< refused but for the values of `detail`, which ask for nothing
  kSwitch,  ///< turns its section on: true is refused, and false leaves the section without effect
  kPart,    ///< detail of a feature: shares the fate of the key or switch above it
};

/// Some keys of one section that share everything but their names.
struct DsRow {
  /// "" at the top; "*" stands for one name of the user's, TECHNIQUE for each way to compress.
  const char* section;
  const char* names;  ///< separated by blanks
  DsType type;
  DsFate fate;
  const char* detail;  ///< kMapped: our keys; kRefused: harmless values, separated by blanks
  const char* note;
};

struct DsKey {
  std::string path;
  std::vector<std::string> parts;  ///< of the path
  const DsRow* row = nullptr;
};

/// Batch, optimizer, schedule, precision, ZeRO, offload, activation checkpointing.
std::span<const DsRow> deepspeed_training_rows();
/// Everything else.
std::span<const DsRow> deepspeed_feature_rows();

/// Every key in the order of the rows.
const std::vector<DsKey>& deepspeed_keys();

/// "mapped", "without effect", "refused", "refused unless false", "refused if true",
/// "follows its feature".
std::string fate_text(const DsRow& row);

/// "true or false", "a number", ...
const char* type_text(DsType type);

}  // namespace k25::trainer
