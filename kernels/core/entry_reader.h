#pragma once
// Takes one line of a stored table apart, from the left. What it accepts too freely (leading
// zeros) a caller finds by writing the entry again and comparing.

#include <charconv>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "kernels/core/check.h"

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

/// Adds entries to a table of choices (a map). `parse(text, key, choice)` takes one apart. Throws
/// kUsage naming an entry that it does not know or whose key is there already: "stored `what` ...
/// is a second one for its `of`"; the table is as it was then.
template <class Table, class Parse>
void load_entries(std::span<const std::string> entries, const std::string& what,
                  const std::string& of, const Parse& parse, Table& table) {
  Table all = table;
  for (const std::string& text : entries) {
    typename Table::key_type key{};
    typename Table::mapped_type choice{};
    if (!parse(text, key, choice)) {
      fail(ErrorKind::kUsage, "stored " + what + " '" + text +
                                  "' is none this program writes; remove the entry, and one is "
                                  "chosen anew");
    }
    if (!all.emplace(key, choice).second) {
      fail(ErrorKind::kUsage, "stored " + what + " '" + text + "' is a second one for its " + of +
                                  "; remove one of the two");
    }
  }
  table.swap(all);
}

}  // namespace k25
