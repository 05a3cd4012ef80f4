#include "trainer/train/step_profile.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "data/io/atomic_file.h"
#include "trainer/config/read_values.h"

namespace k25::trainer {

std::string read_profile_steps(const std::string& text, ProfileSteps& steps) {
  const std::size_t colon = text.find(':');
  std::int64_t* const ends[] = {&steps.first, &steps.last};
  for (int i = 0; i < 2; ++i) {
    YamlNode node;
    node.kind = YamlNode::Kind::kScalar;
    if (colon != std::string::npos) {
      node.scalar = i == 0 ? text.substr(0, colon) : text.substr(colon + 1);
    }
    if (node.scalar.empty() || !read_integer(node, 1, kMaxInteger, *ends[i]).empty()) {
      return "expected A:B, the first and the last step, counted from 1, got '" + text + "'";
    }
  }
  if (steps.first <= steps.last) return "";
  return fmt::format("the last step, {}, is before the first, {}", steps.last, steps.first);
}

void StepProfile::before_step(std::int64_t step) {
  if (step < steps_.first || step > steps_.last || steps_.first == 0) return;
  if (profiler_ == nullptr) {
    profiler_ = std::make_unique<Profiler>(runtime_.context().stream);
    first_ = step;
    profiler_->start();
    runtime_.context().profiler = profiler_.get();
  }
  last_ = step;
}

std::string StepProfile::after_step(std::int64_t step) {
  return step >= steps_.last ? finish() : "";
}

std::string StepProfile::finish() {
  if (profiler_ == nullptr) return "";
  runtime_.context().profiler = nullptr;
  const std::unique_ptr<Profiler> profiler = std::move(profiler_);
  profiler->stop();
  return runtime_.is_root() ? write(*profiler) : "";
}

std::string StepProfile::write(const Profiler& profiler) const {
  using Json = nlohmann::ordered_json;
  Json json = {{"format", "k25 profile 1"},
               {"first_step", first_},
               {"last_step", last_},
               {"rank", 0},
               {"ranks", runtime_.world().size()},
               {"device", runtime_.device_name()}};
  json["ranges"] = Json::array();
  const double steps = static_cast<double>(last_ - first_ + 1);
  for (const Profiler::Row& row : profiler.rows()) {
    Json line = {{"range", row.range},
                 {"count", row.count},
                 {"host_ms_per_step", 1e3 * row.host_seconds / steps}};
    if (row.device_seconds) line["device_ms_per_step"] = 1e3 * *row.device_seconds / steps;
    json["ranges"].push_back(std::move(line));
  }
  const std::filesystem::path path =
      run_dir_ / fmt::format("profile-{}-{}.json", steps_.first, steps_.last);
  data::write_file_atomically(path, json.dump(1) + "\n", ErrorKind::kCheckpoint);
  return fmt::format("profile of steps {} to {}: {}", first_, last_, path.string());
}

}  // namespace k25::trainer
