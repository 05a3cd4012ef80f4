#pragma once
// TensorBoard event files: TFRecord framing with masked CRC32C around small protobuf messages.
// Source: the record format and Event / Summary messages documented with TensorFlow.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace k25::trainer {

/// CRC-32C (Castagnoli), as used by TFRecord before masking.
std::uint32_t crc32c(const std::string& bytes);

/// Which file stood at a path when it was opened. Lines written to one that was removed since are
/// lost without a word from the system.
class OpenedFile {
 public:
  OpenedFile() = default;
  explicit OpenedFile(const std::filesystem::path& path);
  /// Throws kCheckpoint unless that file is still there. One stat.
  void require_at_path(const std::filesystem::path& path) const;

 private:
  std::uint64_t device_ = 0, inode_ = 0;
};

class EventFile {
 public:
  /// Creates events.out.tfevents.SECONDS.HOST in `folder`. After a resume at `resume_step` > 0 it
  /// begins with a session start, at which readers drop what earlier files hold of later steps.
  /// Throws kCheckpoint.
  EventFile(const std::filesystem::path& folder, std::int64_t resume_step);
  /// One event with some scalars at `step`. Throws kCheckpoint when the disk is full.
  void write(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

 private:
  void write_record(const std::string& event);

  std::filesystem::path path_;
  std::ofstream out_;
  OpenedFile opened_;
};

}  // namespace k25::trainer
