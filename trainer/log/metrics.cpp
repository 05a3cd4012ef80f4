#include "trainer/log/metrics.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/io/atomic_file.h"
#include "trainer/log/event_file.h"

namespace k25::trainer {
namespace {

using Json = nlohmann::ordered_json;

std::string or_na(const std::optional<double>& value, const char* format) {
  if (!value || !std::isfinite(*value)) return "n/a";
  return fmt::format(fmt::runtime(format), *value);
}

std::string duration_text(double seconds) {
  const std::int64_t s = std::llround(seconds);
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  if (s >= 60) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

// Names and paths may be any bytes; JSON is UTF-8.
std::string dump(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

// A number that does not exist has no key.
void put(Json& j, const char* key, const std::optional<double>& value) {
  if (value && std::isfinite(*value)) j[key] = *value;
}

Json json_of(const StepRecord& r) {
  Json j;
  j["step"] = r.step;
  j["steps"] = r.steps;
  put(j, "loss", r.loss);
  put(j, "loss_max", r.loss_max);
  put(j, "gnorm", r.gradient_norm);
  put(j, "lr", r.lr);
  put(j, "tok/s", r.tokens_per_second);
  put(j, "tflops", r.tflops);
  put(j, "mfu", r.mfu);
  j["step_ms"] = r.step_ms;
  j["data_ms"] = r.data_ms;
  j["wait_ms"] = r.wait_ms;
  j["save_ms"] = r.save_ms;
  if (r.offload_ms) {
    j["offload_copy_ms"] = r.offload_ms->copy;
    j["offload_cpu_ms"] = r.offload_ms->cpu;
    j["offload_exposed_ms"] = r.offload_ms->exposed;
  }
  j["mem_gib"] = r.memory_gib;
  j["tokens"] = r.label_tokens;
  j["total_tokens"] = r.total_tokens;
  j["skipped"] = r.skipped;
  j["nan"] = r.nan;
  j["empty"] = r.empty;
  j["skipped_now"] = r.skipped_now ? 1 : 0;
  j["empty_now"] = r.empty_now ? 1 : 0;
  j["epoch"] = r.epoch;
  for (const auto& [domain, count] : r.domain_samples) j["domain_samples"][domain] = count;
  j["samples"] = r.samples;
  put(j, "eta_s", r.eta_seconds);
  for (const auto& [name, value] : r.hardware) put(j, name.c_str(), value);
  return j;
}

Json json_of(const EvalRecord& r) {
  Json j;
  j["step"] = r.step;
  j["event"] = "eval";
  put(j, "val_loss", r.loss);
  j["val_tokens"] = r.tokens;
  for (const auto& [domain, loss] : r.domain_loss) put(j["val_domain_loss"], domain.c_str(), loss);
  j["seconds"] = r.seconds;
  return j;
}

}  // namespace

std::string format_text(const StepRecord& r) {
  return fmt::format(
      "step={}/{} loss={} loss_max={} gnorm={} lr={:.1e} tok/s={:.0f} tflops={} mfu={} "
      "step_ms={:.1f} "
      "data_ms={:.1f} wait_ms={:.1f} save_ms={:.1f} mem_gib={:.3f} tokens={} skipped={} nan={} "
      "empty={} "
      "epoch={:.2f} eta={}",
      r.step, r.steps, or_na(r.loss, "{:.4f}"), or_na(r.loss_max, "{:.4f}"),
      or_na(r.gradient_norm, "{:.3f}"), r.lr, r.tokens_per_second, or_na(r.tflops, "{:.3f}"),
      or_na(r.mfu, "{:.3f}"), r.step_ms, r.data_ms, r.wait_ms, r.save_ms, r.memory_gib,
      r.label_tokens, r.skipped, r.nan, r.empty, r.epoch, duration_text(r.eta_seconds));
}

std::string format_json(const StepRecord& r) { return dump(json_of(r)); }

struct Metrics::Impl {
  LogConfig config;
  std::filesystem::path path;
  std::ofstream jsonl;
  OpenedFile opened;
  std::unique_ptr<EventFile> events;
  std::string warning;

  void line(const std::string& text) const {
    if (std::fputs((text + "\n").c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
      fail(ErrorKind::kCheckpoint,
           std::string("standard output cannot be written: ") + std::strerror(errno));
    }
  }
  void append(const Json& j) {
    if (!config.metrics) return;
    opened.require_at_path(path);
    jsonl << dump(j) << "\n";
    jsonl.flush();
    if (!jsonl) {
      fail(ErrorKind::kCheckpoint, path.string() + ": cannot be written: " + std::strerror(errno) +
                                       "; free space, or set log.metrics: false");
    }
  }
  void open_jsonl(std::int64_t resume_step);
  void keep_old_file(std::int64_t foreign, std::int64_t first);
};

void Metrics::Impl::keep_old_file(std::int64_t foreign, std::int64_t first) {
  const auto name = [&](int n) { return fmt::format("{}.before-{}", path.string(), n); };
  int n = 1;
  while (std::filesystem::exists(name(n))) ++n;
  std::filesystem::copy_file(path, name(n));
  warning = fmt::format(
      "{}:{}: no line of a run; {} such line(s) are left out, the file as it was is now {}",
      path.string(), first, foreign, name(n));
}

// Lines of steps that will be trained again, and a last line cut short by a crash, go. Others that
// no run wrote are somebody's: the file is kept.
void Metrics::Impl::open_jsonl(std::int64_t resume_step) {
  std::string kept;
  if (std::filesystem::exists(path)) {
    std::istringstream in(data::read_file(path, ErrorKind::kCheckpoint));
    std::int64_t number = 0, foreign = 0, first = 0;
    for (std::string text; std::getline(in, text);) {
      ++number;
      const bool cut = in.eof();  // no line feed
      const Json j = Json::parse(text, nullptr, false);
      if (j.is_object() && j.contains("step") && j["step"].is_number_integer()) {
        if (j["step"].get<std::int64_t>() <= resume_step) kept += text + "\n";
      } else if (!cut && !text.empty() && ++foreign == 1) {
        first = number;
      }
    }
    if (resume_step == 0) kept.clear();
    if (foreign > 0) keep_old_file(foreign, first);
    data::write_file_atomically(path, kept, ErrorKind::kCheckpoint);
  }
  jsonl.open(path, std::ios::app);
  if (!jsonl) {
    fail(ErrorKind::kCheckpoint, path.string() + ": cannot be opened: " + std::strerror(errno));
  }
  opened = OpenedFile(path);
}

Metrics::Metrics(const std::filesystem::path& run_dir, const LogConfig& config,
                 std::int64_t resume_step)
    : impl_(new Impl{.config = config, .path = run_dir / "metrics.jsonl"}) {
  if (config.metrics) impl_->open_jsonl(resume_step);
  if (config.tensorboard)
    impl_->events = std::make_unique<EventFile>(run_dir / "tensorboard", resume_step);
}

Metrics::~Metrics() = default;

const std::string& Metrics::warning() const { return impl_->warning; }

void Metrics::write(const StepRecord& r) {
  impl_->line(impl_->config.format == LogFormat::kJson ? format_json(r) : format_text(r));
  impl_->append(json_of(r));
  if (impl_->events == nullptr) return;
  std::vector<std::pair<std::string, double>> scalars = {
      {"optim/lr", r.lr},
      {"optim/skipped", static_cast<double>(r.skipped)},
      {"throughput/tokens_per_second", r.tokens_per_second},
      {"time/step_ms", r.step_ms},
      {"time/data_ms", r.data_ms},
      {"time/wait_ms", r.wait_ms},
      {"time/save_ms", r.save_ms},
      {"memory/gib", r.memory_gib}};
  if (r.loss) scalars.emplace_back("loss/train", *r.loss);
  if (r.loss_max) scalars.emplace_back("loss/train_max", *r.loss_max);
  if (r.gradient_norm) scalars.emplace_back("optim/gradient_norm", *r.gradient_norm);
  scalars.insert(scalars.end(), r.hardware.begin(), r.hardware.end());
  impl_->events->write(r.step, scalars);
}

void Metrics::write(const EvalRecord& r) {
  if (impl_->config.format == LogFormat::kJson) {
    impl_->line(dump(json_of(r)));
  } else {
    impl_->line(fmt::format("eval step={} val_loss={} val_tokens={} seconds={:.2f}", r.step,
                            or_na(r.loss, "{:.4f}"), r.tokens, r.seconds));
  }
  impl_->append(json_of(r));
  if (impl_->events == nullptr || !r.loss) return;
  std::vector<std::pair<std::string, double>> scalars = {{"loss/validation", *r.loss}};
  for (const auto& [domain, loss] : r.domain_loss) {
    scalars.emplace_back("loss/validation_" + domain, loss);
  }
  impl_->events->write(r.step, scalars);
}

void Metrics::note(const std::string& text) {
  const bool json = impl_->config.format == LogFormat::kJson;
  impl_->line(json ? dump({{"event", "note"}, {"text", text}}) : "k25: " + text);
}

}  // namespace k25::trainer
