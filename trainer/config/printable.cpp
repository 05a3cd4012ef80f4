#include "trainer/config/printable.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/tokenizer/utf8.h"

namespace k25::trainer {

std::string printable(std::string_view text) {
  std::string shown;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = data::utf8_sequence_length(text.substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1_control = byte == 0xC2 && length == 2 && text[i + 1] < '\xA0';
    if (c1_control) {
      shown += fmt::format("\\u{:04x}", static_cast<unsigned char>(text[i + 1]));
    } else if (length > 1) {
      shown += text.substr(i, length);
    } else if (text[i] == '\n') {
      shown += "\\n";
    } else if (length == 0 || byte < ' ' || byte == 0x7f) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += text[i];
    }
    i += std::max<std::size_t>(length, 1);
  }
  return shown;
}

std::string printable_start(std::string_view text) {
  constexpr std::size_t kShown = 60;
  if (text.size() <= kShown) return printable(text);
  std::size_t end = kShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return printable(text.substr(0, end == 0 ? kShown : end)) + "...";
}

}  // namespace k25::trainer
