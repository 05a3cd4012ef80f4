#include "data/prepare/text_check.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace k25::data {

namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;
constexpr std::int64_t kNulShare = 8;

std::string hex(char c) {
  char text[8];
  std::snprintf(text, sizeof text, "%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
  return text;
}

/// Goes through a file's characters block by block; keeps the position for messages.
class TextCheck {
 public:
  explicit TextCheck(const std::filesystem::path& path) : path_(path) {}

  /// Checks all whole characters of `text` and returns how many bytes they are.
  std::size_t feed(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
      const std::size_t length = utf8_sequence_length(text.substr(at));
      if (length == 0) {
        if (classify_utf8_prefix(text.substr(at)) == Utf8Prefix::kIncomplete) return at;
        refuse_byte(text[at]);
      }
      see(text.substr(at, length));
      at += length;
    }
    return at;
  }

  [[noreturn]] void refuse_byte(char byte) const {
    refuse(":" + std::to_string(line_), "not UTF-8 text: byte 0x" + hex(byte) + " at byte offset " +
                                            std::to_string(offset_) +
                                            ": convert the file or move it out of the folder");
  }

  void finish() const {
    if (offset_ == 0) refuse("", "empty (0 bytes): remove the file or move it out of the folder");
    if (nuls_ * kNulShare > offset_) {
      refuse("", "a binary file, not text: " + std::to_string(nuls_) + " of its " +
                     std::to_string(offset_) + " bytes are NUL (UTF-16?): convert the file or " +
                     "move it out of the folder");
    }
  }

 private:
  void see(std::string_view character) {
    if (character == "\xE2\x96\x81") {
      refuse(":" + std::to_string(line_) + ":" + std::to_string(column_),
             "U+2581 at byte offset " + std::to_string(offset_) +
                 ": the tokenizer reserves this character: replace it, for example by '_'");
    }
    nuls_ += character[0] == '\0' ? 1 : 0;
    offset_ += static_cast<std::int64_t>(character.size());
    ++column_;
    if (character[0] == '\n') {
      ++line_;
      column_ = 1;
    }
  }

  [[noreturn]] void refuse(const std::string& position, const std::string& why) const {
    fail(ErrorKind::kData, path_.string() + position + ": " + why);
  }

  const std::filesystem::path& path_;
  std::int64_t offset_ = 0, line_ = 1, column_ = 1, nuls_ = 0;
};

}  // namespace

void check_text_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorKind::kData, path.string() + ": cannot open: " + std::strerror(errno));
  TextCheck check(path);
  std::string block;
  std::vector<char> buffer(kBlock);
  while (in) {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    block.append(buffer.data(), static_cast<std::size_t>(in.gcount()));
    block.erase(0, check.feed(block));
  }
  if (in.bad()) fail(ErrorKind::kData, path.string() + ": cannot read: " + std::strerror(errno));
  if (!block.empty()) check.refuse_byte(block[0]);  // a character that the file's end cuts off
  check.finish();
}

std::string printable(std::string_view text) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_sequence_length(text.substr(at));
    const bool control = static_cast<unsigned char>(text[at]) < 0x20 || text[at] == 0x7F;
    if (length == 0 || control) {
      shown += "\\x" + hex(text[at++]);
    } else {
      shown += text.substr(at, length);
      at += length;
    }
  }
  return shown;
}

}  // namespace k25::data
