#include "trainer/train/run_plans.h"

#include <fmt/format.h>

#include <charconv>

#include "data/io/atomic_file.h"
#include "data/io/block_digest.h"
#include "parallel/comm/agree.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"
#include "trainer/train/plans.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "plans.json";
constexpr Bytes kMost{std::int64_t{64} << 20};

/// Collective. The smallest and the largest of all ranks.
std::pair<std::int64_t, std::int64_t> extremes(Runtime& runtime, std::int64_t value) {
  std::int64_t both[] = {value, -value};
  runtime.comm()
      .all_reduce_small({.name = "plans"},
                        {.integers = both, .count = 2, .op = parallel::ReduceOp::kMin})
      .wait();
  return {both[0], -both[1]};
}

/// What of a machine may move the bits of a rank's own work.
std::string machine_of(const Plans& plans) {
  std::string text = "cpu " + plans.host.cpu_isa;
  if (!plans.gpu) return text;
  const CudaFacts& g = *plans.gpu;
  return text + fmt::format(", {} with {} multiprocessors, driver {}, cublaslt {}, cudnn {}",
                            g.name, g.num_sms, g.driver, g.cublaslt, g.cudnn);
}

/// RUN/plans.json of RUN/checkpoints/step-N; what was set aside together bears the same ending.
fs::path plans_of(const fs::path& checkpoint) {
  fs::path step = fs::absolute(checkpoint).lexically_normal();
  if (!step.has_filename()) step = step.parent_path();  // it ends with a slash
  const std::string folder = step.parent_path().filename().string();
  const std::size_t ending = folder.find(".before-");
  return step.parent_path().parent_path() /
         (kName + (ending == std::string::npos ? "" : folder.substr(ending)));
}

void warn_of_unlike_ranks(Runtime& runtime, std::vector<std::string>& warnings) {
  const std::string machine = machine_of(runtime.plans());
  const std::string digits = data::sha256_hex(machine).substr(0, 15);
  std::int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
  const auto [least, most] = extremes(runtime, number);
  if (least == most) return;
  warnings.push_back("the ranks run on unlike machines (rank 0: " + machine +
                     "): the bits depend on which rank computes what");
}

}  // namespace

void load_plans(Runtime& runtime, const std::optional<fs::path>& checkpoint,
                std::vector<std::string>& warnings) {
  warn_of_unlike_ranks(runtime, warnings);
  if (!checkpoint) return;
  const fs::path path = plans_of(*checkpoint);
  const std::string text = parallel::from_rank0(runtime.comm(), "plans", [&] {
    if (!is_there(path)) return std::string();
    const std::string found = data::read_file(path, ErrorKind::kCheckpoint, kMost);
    return plans_json(parse_plans(found, path.string()));
  });
  if (text.empty()) return;
  const Plans stored = parse_plans(text, path.string());
  const std::string hindrance = plans_hindrance(stored, runtime.plans());
  if (extremes(runtime, hindrance.empty() ? 1 : 0).first == 0) {
    warnings.push_back(fmt::format(
        "{}: its kernels were chosen for another machine ({}): not used, and chosen anew",
        path.string(), hindrance.empty() ? "that of another rank" : hindrance));
    return;
  }
  runtime.use(stored);
}

void keep_plans(Runtime& runtime, const fs::path& run_dir, const RunLock* lock, TrainState& state) {
  state.fingerprint = runtime.fingerprint();
  if (!runtime.is_root()) return;
  const fs::path path = run_dir / kName;
  try {
    const std::string text = plans_json(runtime.plans());
    if (is_there(path) && data::read_file(path, ErrorKind::kCheckpoint, kMost) == text) return;
    data::write_file_atomically(path, text, ErrorKind::kCheckpoint, [&] {
      if (lock != nullptr) lock->require_held();
    });
  } catch (const Error& error) {
    fmt::print(stderr,
               "k25: warning: the kernels in use were not recorded: {}; a resumed run chooses them "
               "anew\n",
               error.what());
  }
}

}  // namespace k25::trainer
