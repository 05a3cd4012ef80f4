#include "trainer/config/places.h"

#include <algorithm>

#include "parallel/comm/agree.h"

namespace k25::trainer {
namespace {

constexpr const char* kWordLetters = "abcdefghijklmnopqrstuvwxyz0123456789_.";

bool is_below(const std::string& path, const std::string& above) {
  return path.size() > above.size() && path.starts_with(above) &&
         (path[above.size()] == '.' || path[above.size()] == '[');
}

// The place of a key's element that the message quotes first, of the key, or of the first set key
// of a section; "" when there is none.
std::string place_of(const ParsedConfig& parsed, const std::string& word,
                     const std::string& message) {
  const auto known = parsed.origins.find(word);
  std::size_t first = std::string::npos;
  std::string place;
  for (const auto& [path, origin] : parsed.origins) {
    if (known == parsed.origins.end() || !is_below(path, word)) continue;
    const std::size_t at = message.find("'" + parsed.values.at(path) + "'");
    if (at >= first) continue;
    first = at;
    place = origin;
  }
  if (!place.empty()) return place;
  if (known != parsed.origins.end()) return known->second == "default" ? "" : known->second;
  for (const auto& [path, origin] : parsed.origins) {
    if (is_below(path, word) && origin != "default") return origin;
  }
  return "";
}

// The first word after the beginning that is a key, or a section with one, which the user gave.
std::string named_key(const ParsedConfig& parsed, const std::string& message) {
  for (std::size_t at = message.find(' '); at != std::string::npos; at = message.find(' ', at)) {
    const std::size_t begin = at + 1;
    const std::size_t end =
        std::min(message.find_first_not_of(kWordLetters, begin), message.size());
    std::string word = message.substr(begin, end - begin);
    while (word.ends_with('.')) word.pop_back();
    const bool dotted = word.find('.') != std::string::npos;
    if (dotted && !place_of(parsed, word, "").empty()) return word;
    at = begin;
  }
  return "";
}

bool begins_with_path(const std::string& message, const std::string& path) {
  const std::size_t begin = message.starts_with('\'') ? 1 : 0, end = begin + path.size();
  return !path.empty() && message.compare(begin, path.size(), path) == 0 &&
         (path.ends_with('/') || message.find_first_of("/': ", end) == end);
}

// The key whose path the message begins with: files tell their own name first. A corpus may lie
// where a checkpoint is looked for, so the kind of the error decides between the two.
std::string key_of_path(const ParsedConfig& parsed, ErrorKind kind, const std::string& message) {
  const Config& c = parsed.config;
  if (kind == ErrorKind::kData && begins_with_path(message, c.data.train)) return "data.train";
  const bool checkpoint = kind == ErrorKind::kCheckpoint;
  return checkpoint && begins_with_path(message, c.train.init_from) ? "train.init_from" : "";
}

}  // namespace

std::string with_place(const ParsedConfig& parsed, ErrorKind kind, const std::string& message) {
  const std::size_t end = std::min(message.find_first_not_of(kWordLetters), message.size());
  std::string word = message.substr(0, end);
  const bool dotted = word.find('.') != std::string::npos;
  const std::string place = dotted ? place_of(parsed, word, message) : "";
  if (!place.empty()) return place + ": " + message;
  const std::string named = named_key(parsed, message);
  const std::string key = named.empty() ? key_of_path(parsed, kind, message) : named;
  const bool one_line = message.find('\n') == std::string::npos;
  if (key.empty() || !one_line) return message;
  return message + " (" + key + ": " + place_of(parsed, key, "") + ")";
}

void with_places(const ParsedConfig& parsed, const std::function<void()>& body) {
  const auto is_about_settings = [](const Error& error) {
    return error.kind() == ErrorKind::kUsage || error.kind() == ErrorKind::kData ||
           error.kind() == ErrorKind::kCheckpoint;
  };
  try {
    body();
  } catch (const parallel::AgreedError& error) {
    if (!is_about_settings(error)) throw;
    throw parallel::AgreedError(error.kind(), with_place(parsed, error.kind(), error.what()),
                                error.origin());
  } catch (const Error& error) {
    if (!is_about_settings(error)) throw;
    throw Error(error.kind(), with_place(parsed, error.kind(), error.what()), error.where());
  }
}

}  // namespace k25::trainer
