#include "trainer/log/event_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "kernels/core/check.h"

namespace k25::trainer {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = c;
  }
  return table;
}
constexpr auto kTable = make_table();

std::string little_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return out;
}

std::string masked_crc(const std::string& bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return little_endian(((crc >> 15) | (crc << 17)) + 0xa282ead8u, 4);
}

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}

// Protobuf fields: the tag is (number << 3) | wire type.
std::string field_bytes(int number, const std::string& bytes) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string field_varint(int number, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(number) << 3) + varint(value);
}
std::string field_double(int number, double value) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 1) +
         little_endian(std::bit_cast<std::uint64_t>(value), 8);
}
std::string field_float(int number, float value) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 5) +
         little_endian(std::bit_cast<std::uint32_t>(value), 4);
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::uint32_t crc32c(const std::string& bytes) {
  std::uint32_t c = 0xffffffffu;
  for (const char b : bytes) c = kTable[(c ^ static_cast<unsigned char>(b)) & 0xff] ^ (c >> 8);
  return c ^ 0xffffffffu;
}

OpenedFile::OpenedFile(const std::filesystem::path& path) {
  struct stat found{};
  if (stat(path.c_str(), &found) != 0) return;  // the next look tells
  device_ = found.st_dev;
  inode_ = found.st_ino;
}

void OpenedFile::require_at_path(const std::filesystem::path& path) const {
  struct stat found{};
  const bool there = stat(path.c_str(), &found) == 0;
  if (there && found.st_dev == device_ && found.st_ino == inode_) return;
  fail(ErrorKind::kCheckpoint,
       path.string() + " is " + (there ? "another file than the one opened" : "gone") +
           ": it was moved, removed or replaced while this run wrote to it, and what follows would "
           "be lost. Go on with --resume auto, and leave the file alone until the run ends");
}

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t resume_step) {
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  char host[128] = "host";
  gethostname(host, sizeof host - 1);
  const std::string stem =
      "events.out.tfevents." + std::to_string(static_cast<std::int64_t>(wall_time())) + "." + host;
  path_ = folder / stem;
  for (int n = 1; std::filesystem::exists(path_); ++n)
    path_ = folder / (stem + "." + std::to_string(n));
  out_.open(path_, std::ios::binary);
  if (!out_) {
    fail(ErrorKind::kCheckpoint, path_.string() + ": cannot be created: " + std::strerror(errno));
  }
  opened_ = OpenedFile(path_);
  write_record(field_double(1, wall_time()) + field_bytes(3, "brain.Event:2"));
  if (resume_step > 0) {
    constexpr std::uint64_t kStart = 1;  // SessionLog.status
    write_record(field_double(1, wall_time()) +
                 field_varint(2, static_cast<std::uint64_t>(resume_step) + 1) +
                 field_bytes(7, field_varint(1, kStart)));
  }
}

void EventFile::write(std::int64_t step,
                      const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += field_bytes(1, field_bytes(1, tag) + field_float(2, static_cast<float>(value)));
  }
  write_record(field_double(1, wall_time()) + field_varint(2, static_cast<std::uint64_t>(step)) +
               field_bytes(5, summary));
}

void EventFile::write_record(const std::string& event) {
  opened_.require_at_path(path_);
  const std::string length = little_endian(event.size(), 8);
  out_ << length << masked_crc(length) << event << masked_crc(event);
  out_.flush();
  if (!out_) {
    fail(ErrorKind::kCheckpoint, path_.string() + ": cannot be written: " + std::strerror(errno) +
                                     "; free space, or set log.tensorboard: false");
  }
}

}  // namespace k25::trainer
