#pragma once
// Takes one line of a stored table apart, from the left. What it accepts too freely (leading
// zeros) a caller finds by writing the entry again and comparing.

#include <charconv>
#include <cstddef>
#include <string_view>
#include <system_error>

namespace k25 {

class EntryReader {
 public:
  explicit EntryReader(std::string_view text) : rest_(text) {}

  bool literal(std::string_view text) {
    const bool found = rest_.substr(0, text.size()) == text;
    if (found) rest_.remove_prefix(text.size());
    return found;
  }
  template <class Integer>
  bool number(Integer& value, int base = 10, std::size_t digits = std::string_view::npos) {
    const std::string_view field = rest_.substr(0, digits);
    const auto [end, error] =
        std::from_chars(field.data(), field.data() + field.size(), value, base);
    rest_.remove_prefix(static_cast<std::size_t>(end - field.data()));
    return error == std::errc();
  }
  /// `first` is tried first: `second` may start like it.
  template <class Enum>
  bool choice(Enum& value, std::string_view first, Enum if_first, std::string_view second,
              Enum if_second) {
    const bool is_first = literal(first);
    value = is_first ? if_first : if_second;
    return is_first || literal(second);
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

}  // namespace k25
