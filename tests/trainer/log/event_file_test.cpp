// TensorBoard files, read back by a reader of this test's own: framing, checksums, protobuf.
#include "trainer/log/event_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>

#include "data/io/atomic_file.h"
#include "tests/data/scratch_folder.h"

namespace k25::trainer {
namespace {

TEST(Crc32c, known_vectors) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising.push_back(static_cast<char>(i));
    falling.push_back(static_cast<char>(31 - i));
  }
  EXPECT_EQ(crc32c(rising), 0x46dd794eu);
  EXPECT_EQ(crc32c(falling), 0x113fdb5cu);
}

// The checksum bit by bit, so that the reader shares nothing with the writer.
std::uint32_t slow_masked_crc(const std::string& bytes) {
  std::uint32_t c = ~0u;
  for (const char b : bytes) {
    c ^= static_cast<unsigned char>(b);
    for (int i = 0; i < 8; ++i) c = (c & 1u) != 0 ? (c >> 1) ^ 0x82f63b78u : c >> 1;
  }
  c = ~c;
  return ((c >> 15) | (c << 17)) + 0xa282ead8u;
}

std::uint64_t little(const std::string& bytes, std::size_t at, int count) {
  std::uint64_t value = 0;
  for (int i = 0; i < count; ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes.at(at + static_cast<std::size_t>(i)))}
             << (8 * i);
  }
  return value;
}

std::vector<std::string> read_records(const std::string& file) {
  std::vector<std::string> records;
  std::size_t at = 0;
  while (at < file.size()) {
    const std::uint64_t length = little(file, at, 8);
    EXPECT_EQ(little(file, at + 8, 4), slow_masked_crc(file.substr(at, 8)));
    const std::string payload = file.substr(at + 12, length);
    EXPECT_EQ(payload.size(), length);
    EXPECT_EQ(little(file, at + 12 + length, 4), slow_masked_crc(payload));
    records.push_back(payload);
    at += 16 + length;
  }
  return records;
}

struct Field {
  std::uint64_t number = 0;
  std::string bytes;       // length-delimited
  std::uint64_t bits = 0;  // varint, fixed64, fixed32
};

std::uint64_t read_varint(const std::string& text, std::size_t& at) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(text.at(at++));
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

std::vector<Field> read_fields(const std::string& text) {
  std::vector<Field> fields;
  for (std::size_t at = 0; at < text.size();) {
    const std::uint64_t tag = read_varint(text, at);
    Field field{.number = tag >> 3, .bytes = "", .bits = 0};
    switch (tag & 7) {
      case 0:
        field.bits = read_varint(text, at);
        break;
      case 1:
        field.bits = little(text, at, 8);
        at += 8;
        break;
      case 5:
        field.bits = little(text, at, 4);
        at += 4;
        break;
      default: {
        const std::uint64_t length = read_varint(text, at);
        field.bytes = text.substr(at, length);
        at += length;
      }
    }
    fields.push_back(field);
  }
  return fields;
}

struct Event {
  double wall_time = 0.0;
  std::int64_t step = 0;
  std::string version;
  std::uint64_t session_status = 0;
  std::map<std::string, float> scalars;
};

Event read_event(const std::string& record) {
  Event event;
  for (const Field& field : read_fields(record)) {
    if (field.number == 1) event.wall_time = std::bit_cast<double>(field.bits);
    if (field.number == 2) event.step = static_cast<std::int64_t>(field.bits);
    if (field.number == 3) event.version = field.bytes;
    if (field.number == 7) event.session_status = read_fields(field.bytes).at(0).bits;
    if (field.number != 5) continue;
    for (const Field& value : read_fields(field.bytes)) {
      std::string tag;
      float number = 0.0f;
      for (const Field& part : read_fields(value.bytes)) {
        if (part.number == 1) tag = part.bytes;
        if (part.number == 2) number = std::bit_cast<float>(static_cast<std::uint32_t>(part.bits));
      }
      event.scalars[tag] = number;
    }
  }
  return event;
}

std::vector<Event> events_in(const std::filesystem::path& path) {
  std::vector<Event> events;
  for (const std::string& r : read_records(data::read_file(path, ErrorKind::kData)))
    events.push_back(read_event(r));
  return events;
}

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files.push_back(entry.path());
  return files;
}

TEST(EventFile, an_independent_reader_finds_what_was_written) {
  const data::ScratchFolder folder;
  {
    EventFile file(folder / "tensorboard", 0);
    file.write(1, {{"loss/train", 2.5}, {"optim/lr", 1e-3}});
    file.write(3000000000, {{"loss/train", -0.125}, {std::string(300, 'x'), 7.0}});
  }
  const auto files = files_in(folder / "tensorboard");
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].filename().string().rfind("events.out.tfevents.", 0), 0u);
  const std::vector<Event> events = events_in(files[0]);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_GT(events[1].wall_time, 1.6e9);
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[1].scalars,
            (std::map<std::string, float>{{"loss/train", 2.5f}, {"optim/lr", 1e-3f}}));
  EXPECT_EQ(events[2].step, 3000000000);
  EXPECT_EQ(events[2].scalars.at(std::string(300, 'x')), 7.0f);
}

TEST(EventFile, a_resumed_run_begins_a_session_at_its_next_step) {
  const data::ScratchFolder folder;
  EventFile first(folder / "t", 0), second(folder / "t", 5);
  second.write(6, {{"a", 1.0}});
  std::size_t sessions = 0;
  const auto files = files_in(folder / "t");
  EXPECT_EQ(files.size(), 2u) << "two files of the same second must not share a name";
  for (const auto& file : files) {
    for (const Event& event : events_in(file)) {
      if (event.session_status != 1) continue;
      ++sessions;
      EXPECT_EQ(event.step, 6);
    }
  }
  EXPECT_EQ(sessions, 1u);
}

TEST(EventFile, a_folder_that_cannot_be_made_is_named) {
  const data::ScratchFolder folder;
  data::write_text(folder / "file", "");
  data::expect_error(
      ErrorKind::kCheckpoint, [&] { EventFile file(folder / "file/t", 0); }, "file/t",
      "Not a directory");
}

}  // namespace
}  // namespace k25::trainer
