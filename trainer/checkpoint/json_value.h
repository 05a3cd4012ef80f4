#pragma once
// A value of a JSON document that somebody may have changed. What is missing, of another type or
// out of range throws kCheckpoint naming its key: "FILE: damaged state: 'policy.updates' is -1,
// expected an integer from 0 to 4". Private to checkpoints.

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace k25::trainer {

class JsonValue {
 public:
  /// Above it, adding one more step would not be safe.
  static constexpr std::int64_t kMost = std::int64_t{1} << 62;

  /// `json` must outlive this and all that comes of it; `what`: "FILE: damaged state".
  JsonValue(const nlohmann::json& json, std::string what, std::string path = "");

  JsonValue at(const std::string& key) const;
  bool has(const std::string& key) const;
  std::vector<JsonValue> items() const;
  std::string text() const;
  std::uint64_t any_unsigned() const;
  std::int64_t integer(std::int64_t low = 0, std::int64_t high = kMost) const;
  double number(double low = std::numeric_limits<double>::lowest(),
                double high = std::numeric_limits<double>::max()) const;

  [[noreturn]] void wrong(const std::string& expected) const;

 private:
  const nlohmann::json& json_;
  std::string what_, path_;
};

}  // namespace k25::trainer
