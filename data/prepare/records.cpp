#include "data/prepare/records.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace k25::data {

namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
constexpr std::string_view kForms =
    "expected one of {\"text\"}, {\"prompt\", \"response\"} or {\"messages\"}";

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  fail(ErrorKind::kData, where + ": " + why);
}

/// nlohmann's message without its own position: "syntax error while parsing value - unexpected
/// ...".
std::string reason_of(const json::exception& error) {
  const std::string text = error.what();
  const std::size_t at = text.find("syntax error");
  if (at != text.npos) return text.substr(at);
  const std::size_t bracket = text.find("] ");
  return bracket == text.npos ? text : text.substr(bracket + 2);
}

json parse_object(std::string_view line, const std::string& where) {
  std::set<std::string> keys;
  const auto check_keys = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1 &&
        !keys.insert(parsed.get<std::string>()).second) {
      refuse(where, "key \"" + parsed.get<std::string>() + "\" is given twice");
    }
    return true;
  };
  try {
    json object = json::parse(line, check_keys);
    if (!object.is_object()) {
      refuse(where, std::string("column 1: expected a JSON object, found ") + object.type_name());
    }
    return object;
  } catch (const json::parse_error& error) {
    const auto byte = std::min<std::size_t>(error.byte > 0 ? error.byte - 1 : 0, line.size());
    const TextPosition at = text_position(line, static_cast<std::int64_t>(byte));
    refuse(where, "column " + std::to_string(at.column) + ": broken JSON: " + reason_of(error));
  } catch (const json::exception& error) {  // a number out of range
    refuse(where, "broken JSON: " + reason_of(error));
  }
}

const std::string& string_at(const json& object, const std::string& key, const std::string& where,
                             const std::string& name) {
  if (!object.contains(key)) refuse(where, name + " is missing");
  const json& value = object.at(key);
  if (!value.is_string()) {
    refuse(where, name + " must be a string, found " + value.type_name());
  }
  return value.get_ref<const std::string&>();
}

std::int32_t count_at(const json& object, const std::string& key, const std::string& where,
                      std::int32_t otherwise) {
  if (!object.contains(key)) return otherwise;
  const json& value = object.at(key);
  const bool fits = value.is_number_unsigned() &&
                    value.get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max();
  if (!fits) {
    refuse(where, "\"" + key + "\" must be an integer from 0 to 2147483647, found " +
                      (value.is_number() ? value.dump() : std::string(value.type_name())));
  }
  return value.get<std::int32_t>();
}

/// Collects messages in the text form of a conversation.
class Conversation {
 public:
  explicit Conversation(Record& record) : record_(record) {}

  void add(std::string_view role, const std::string& content) {
    const std::string head = (first_ ? "### " : "\n\n### ") + std::string(role) + "\n";
    first_ = false;
    const bool labelled = role == "assistant";
    append(head, 0);
    append(content, labelled ? 1 : 0);
    labelled_bytes_ += labelled ? content.size() : 0;
  }
  bool has_labels() const { return labelled_bytes_ > 0; }

 private:
  void append(const std::string& text, std::uint8_t label) {
    if (text.empty()) return;
    if (record_.segments.empty() || record_.segments.back().label != label) {
      record_.segments.push_back({"", label});
    }
    record_.segments.back().text += text;
  }

  Record& record_;
  bool first_ = true;
  std::size_t labelled_bytes_ = 0;
};

void read_messages(const json& messages, Record& record, const std::string& where) {
  if (!messages.is_array() || messages.empty()) {
    refuse(where, "\"messages\" must be a list with at least one message");
  }
  Conversation conversation(record);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string name = "messages[" + std::to_string(i) + "]";
    if (!messages[i].is_object()) refuse(where, name + " must be an object");
    const std::string& role = string_at(messages[i], "role", where, name + ".role");
    const std::string& content = string_at(messages[i], "content", where, name + ".content");
    if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
      refuse(where, name + ".role '" + role + "' is unknown (system, user, assistant, tool)");
    }
    conversation.add(role, content);
  }
  if (!conversation.has_labels()) {
    refuse(where, "no assistant message with content: there is nothing to learn from it");
  }
}

void read_form(const json& object, Record& record, const std::string& where) {
  const bool text = object.contains("text"), messages = object.contains("messages");
  const bool pair = object.contains("prompt") || object.contains("response");
  if (int{text} + int{messages} + int{pair} != 1) {
    refuse(where, std::string(text || messages || pair ? "more than one form" : "no known form") +
                      ": " + std::string(kForms));
  }
  if (text) {
    record.segments.push_back({string_at(object, "text", where, "\"text\""), 1});
    if (record.segments[0].text.empty()) refuse(where, "\"text\" is empty");
  } else if (messages) {
    read_messages(object.at("messages"), record, where);
  } else {
    const std::string& prompt = string_at(object, "prompt", where, "\"prompt\"");
    const std::string& response = string_at(object, "response", where, "\"response\"");
    if (response.empty()) refuse(where, "\"response\" is empty: there is nothing to learn from it");
    Conversation conversation(record);
    conversation.add("user", prompt);
    conversation.add("assistant", response);
  }
}

/// Whether some form is meant; what is wrong with it is for parse_record to say.
bool has_form(const json& value) {
  if (!value.is_object()) return false;
  const auto holds = [&](const char* key, json::value_t type) {
    return value.contains(key) && value.at(key).type() == type;
  };
  return holds("text", json::value_t::string) || holds("messages", json::value_t::array) ||
         (holds("prompt", json::value_t::string) && holds("response", json::value_t::string));
}

}  // namespace

std::string Record::text() const {
  std::string all;
  for (const Segment& segment : segments) all += segment.text;
  return all;
}

Record parse_record(std::string_view line, const std::string& where) {
  const json object = parse_object(line, where);
  Record record;
  read_form(object, record, where);
  record.topic = count_at(object, "topic", where, -1);
  record.hops = count_at(object, "hops", where, 0);
  if (object.contains("source")) {
    record.source = string_at(object, "source", where, "\"source\"");
    if (record.source.empty()) refuse(where, "\"source\" is empty");
  }
  if (find_reserved_character(record.text()) >= 0 || find_reserved_character(record.source) >= 0) {
    refuse(where, "U+2581, which the tokenizer reserves, in the text: replace it");
  }
  static constexpr std::array<std::string_view, 7> kKnown = {
      "text", "prompt", "response", "messages", "topic", "hops", "source"};
  for (const auto& [key, value] : object.items()) {
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) {
      record.ignored_keys.push_back(key);
    }
  }
  return record;
}

bool is_json_object(std::string_view text) { return json::parse(text, nullptr, false).is_object(); }

bool looks_like_record(std::string_view text) {
  return has_form(json::parse(text, nullptr, false));
}

bool is_array_of_records(std::string_view text) {
  bool array = false, record = false;
  const auto look = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth == 0 && event == json::parse_event_t::array_start) array = true;
    if (depth == 1 && event == json::parse_event_t::object_end && array) {
      record = record || has_form(parsed);
      return false;  // seen: need not be kept
    }
    return true;
  };
  [[maybe_unused]] const json rest = json::parse(text, look, false);
  return record;
}

}  // namespace k25::data
