#pragma once
// What a user wrote, made fit for one line of a message.

#include <string>
#include <string_view>

namespace k25::trainer {

/// `text` with control characters and bytes that are not UTF-8 as escapes ("\n", "\x1b"), so that
/// it is one line of valid UTF-8.
std::string printable(std::string_view text);

/// The same, cut behind 60 bytes ("abc...").
std::string printable_start(std::string_view text);

}  // namespace k25::trainer
