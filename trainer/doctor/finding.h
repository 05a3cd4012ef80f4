#pragma once
// What the doctor says of one thing: what it found, what follows from it, and what mends it.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace k25::trainer {

enum class Severity : std::uint8_t { kOk, kNote, kWarning };

struct Finding {
  Severity severity = Severity::kOk;
  std::string topic;  ///< "memlock"
  std::string found;
  std::string consequence, mend;  ///< both said unless kOk
};

std::string_view severity_text(Severity severity);

/// Worst first, in their order; `consequence` and `mend` on lines of their own.
std::string findings_text(const std::vector<Finding>& findings);

nlohmann::ordered_json to_json(const Finding& finding);
Finding finding_from(const nlohmann::ordered_json& json);

}  // namespace k25::trainer
