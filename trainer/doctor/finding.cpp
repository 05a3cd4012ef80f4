#include "trainer/doctor/finding.h"

#include <fmt/format.h>

#include "trainer/config/printable.h"

namespace k25::trainer {

std::string_view severity_text(Severity severity) {
  switch (severity) {
    case Severity::kOk:
      return "ok";
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
  }
  return "";
}

std::string findings_text(const std::vector<Finding>& findings) {
  std::string text;
  for (const Severity severity : {Severity::kWarning, Severity::kNote, Severity::kOk}) {
    for (const Finding& f : findings) {
      if (f.severity != severity) continue;
      text +=
          fmt::format("{:<8} {:<12} {}\n", severity_text(severity), f.topic, printable(f.found));
      if (!f.consequence.empty()) {
        text += fmt::format("{:>21} {}\n", "so:", printable(f.consequence));
      }
      if (!f.mend.empty()) text += fmt::format("{:>21} {}\n", "mend:", printable(f.mend));
    }
  }
  return text;
}

nlohmann::ordered_json to_json(const Finding& f) {
  return {{"severity", severity_text(f.severity)},
          {"topic", f.topic},
          {"found", printable(f.found)},
          {"consequence", f.consequence},
          {"mend", f.mend}};
}

Finding finding_from(const nlohmann::ordered_json& json) {
  Finding f{.topic = json.at("topic"),
            .found = json.at("found"),
            .consequence = json.at("consequence"),
            .mend = json.at("mend")};
  for (const Severity s : {Severity::kOk, Severity::kNote, Severity::kWarning}) {
    if (json.at("severity") == severity_text(s)) f.severity = s;
  }
  return f;
}

}  // namespace k25::trainer
