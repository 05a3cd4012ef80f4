#include "trainer/checkpoint/json_value.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/core/check.h"

namespace k25::trainer {

JsonValue::JsonValue(const nlohmann::json& json, std::string what, std::string path)
    : json_(json), what_(std::move(what)), path_(std::move(path)) {}

void JsonValue::wrong(const std::string& expected) const {
  const std::string given =
      json_.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 60);
  const std::string name = path_.empty() ? "it" : "'" + path_ + "'";
  fail(ErrorKind::kCheckpoint,
       fmt::format("{}: {} is {}, expected {}", what_, name, given, expected));
}

bool JsonValue::has(const std::string& key) const {
  return json_.is_object() && json_.contains(key);
}

JsonValue JsonValue::at(const std::string& key) const {
  if (!json_.is_object()) wrong("an object");
  const std::string path = path_.empty() ? key : path_ + "." + key;
  if (!json_.contains(key)) {
    fail(ErrorKind::kCheckpoint, fmt::format("{}: '{}' is missing", what_, path));
  }
  return {json_.at(key), what_, path};
}

std::vector<JsonValue> JsonValue::items() const {
  if (!json_.is_array()) wrong("a list");
  std::vector<JsonValue> items;
  for (const nlohmann::json& item : json_) {
    items.emplace_back(item, what_, fmt::format("{}[{}]", path_, items.size()));
  }
  return items;
}

std::string JsonValue::text() const {
  if (!json_.is_string()) wrong("a text");
  return json_.get<std::string>();
}

std::uint64_t JsonValue::any_unsigned() const {
  if (!json_.is_number_unsigned()) wrong("an integer from 0");
  return json_.get<std::uint64_t>();
}

std::int64_t JsonValue::integer(std::int64_t low, std::int64_t high) const {
  const bool fits = json_.is_number_integer() &&
                    (!json_.is_number_unsigned() || json_.get<std::uint64_t>() <= kMost) &&
                    json_.get<std::int64_t>() >= low && json_.get<std::int64_t>() <= high;
  if (!fits) wrong(fmt::format("an integer from {} to {}", low, high));
  return json_.get<std::int64_t>();
}

double JsonValue::number(double low, double high) const {
  const bool fits = json_.is_number() && json_.get<double>() >= low && json_.get<double>() <= high;
  if (!fits) wrong(fmt::format("a number from {} to {}", low, high));
  return json_.get<double>();
}

}  // namespace k25::trainer
