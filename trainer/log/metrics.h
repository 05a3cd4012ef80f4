#pragma once
// Where a run's numbers go: one progress line a step on stdout (rank 0, flushed), RUN/metrics.jsonl
// and TensorBoard event files. Numbers that do not exist are absent ("n/a" on the line, no key in
// JSON): no sink ever holds a nan token.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/config/config.h"

namespace k25::trainer {

/// One step (or one evaluation), as seen by all sinks.
struct StepRecord {
  std::int64_t step = 0, steps = 0;
  std::optional<double> loss, loss_max, gradient_norm;
  double lr = 0.0;
  double tokens_per_second = 0.0;  ///< label tokens of the global batch
  std::optional<double> tflops;    ///< model FLOPs per rank and second
  std::optional<double> mfu;       ///< only for a known device
  double step_ms = 0.0, data_ms = 0.0, wait_ms = 0.0, save_ms = 0.0;
  struct OffloadMs {
    double copy = 0.0, cpu = 0.0, exposed = 0.0;
  };
  std::optional<OffloadMs> offload_ms;  ///< of an update on the host
  double memory_gib = 0.0;
  std::optional<double> memory_percent;
  std::int64_t label_tokens = 0, total_tokens = 0;
  std::int64_t skipped = 0, nan = 0, empty = 0;  ///< counters of the run
  bool skipped_now = false, empty_now = false;
  std::vector<std::pair<std::string, std::int64_t>> domain_samples;  ///< of this step
  std::vector<std::int64_t> samples;  ///< global sample numbers of this step
  double epoch = 0.0;
  double eta_seconds = 0.0;
  std::vector<std::pair<std::string, double>> hardware;  ///< "hw/rss_gib", ...: the last sample
};

struct EvalRecord {
  std::int64_t step = 0;
  std::optional<double> loss;  ///< sum nll / sum tokens
  std::int64_t tokens = 0;
  std::vector<std::pair<std::string, double>> domain_loss;
  double seconds = 0.0;
};

class Metrics {
 public:
  /// Rank 0 only. After a resume at `resume_step`, lines of later steps are cut from metrics.jsonl
  /// (they will be trained again), so no step appears twice. A file with lines that no run wrote is
  /// kept as metrics.jsonl.before-N. Throws kCheckpoint when a sink cannot be opened.
  Metrics(const std::filesystem::path& run_dir, const LogConfig& config, std::int64_t resume_step);
  ~Metrics();

  /// About what stood in metrics.jsonl; "" for nothing to say.
  const std::string& warning() const;

  /// A sink that cannot be written (disk full, closed pipe, /dev/full) throws kCheckpoint naming
  /// it, whatever checkpoint.on_error says: that key is about checkpoints alone.
  void write(const StepRecord& record);
  void write(const EvalRecord& record);
  /// A line for people on stdout: "k25: ...", or {"event": "note", ...} with log.format json.
  void note(const std::string& text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// "step=120/1000 loss=2.3456 loss_max=2.50 gnorm=0.83 lr=2.0e-05 tok/s=... eta=...": key=value,
/// in a stable order.
std::string format_text(const StepRecord& record);
std::string format_json(const StepRecord& record);

}  // namespace k25::trainer
