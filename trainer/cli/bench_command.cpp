#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "data/corpus/corpus.h"
#include "data/io/atomic_file.h"
#include "kernels/attention/attention.h"
#include "kernels/core/philox.h"
#include "kernels/core/stopwatch.h"
#include "parallel/comm/agree.h"
#include "trainer/cli/bench_comm.h"
#include "trainer/cli/bench_copy.h"
#include "trainer/cli/bench_op.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/options.h"
#include "trainer/config/parse.h"
#include "trainer/config/places.h"
#include "trainer/doctor/gemm_ceiling.h"
#include "trainer/doctor/measure.h"
#include "trainer/train/memory_plan.h"
#include "trainer/train/progress.h"
#include "trainer/train/step.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostThreads = 1024;

double gib(std::int64_t bytes) { return static_cast<double>(bytes) * 0x1p-30; }

struct BenchArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::int64_t steps = 20, warmup = 3;
};

// A corpus of random tokens, so that a step can be timed without preparing anything.
class RandomCorpus {
 public:
  RandomCorpus(parallel::Communicator& comm, const Config& config, SignalWatcher& signals)
      : root_(comm.rank() == 0), signals_(signals) {
    folder_ = parallel::from_rank0(comm, "bench corpus", [&] {
      std::string pattern = (fs::temp_directory_path() / "k25-bench-XXXXXX").string();
      if (mkdtemp(pattern.data()) == nullptr)
        fail(ErrorKind::kData, pattern + ": cannot be created");
      signals_.on_stop([pattern] { remove(pattern); });
      write(pattern, config);
      return pattern;
    });
  }
  ~RandomCorpus() {
    signals_.on_stop({});
    if (root_) remove(folder_);
  }
  RandomCorpus(const RandomCorpus&) = delete;
  RandomCorpus& operator=(const RandomCorpus&) = delete;
  fs::path manifest() const { return fs::path(folder_) / "corpus" / "manifest.json"; }

 private:
  static void remove(const fs::path& folder) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
  static void write(const fs::path& folder, const Config& config) {
    data::CorpusContent content;
    const std::int64_t count = 16 * config.data.sequence + 1;
    const Philox random(config.run.seed, 0, "bench");
    for (std::int64_t i = 0; i < count; ++i) {
      content.tokens.push_back(static_cast<std::int32_t>(random.below(
          static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(config.model.vocab))));
    }
    content.tokens.back() = content.info.end_of_document;
    content.labels.assign(content.tokens.size(), 1);
    content.info.vocab = config.model.vocab;
    content.info.domains = {"random"};
    content.documents = {{.source = "random", .sha256 = "", .token_end = count}};
    content.token_bytes.assign(static_cast<std::size_t>(config.model.vocab), "");
    content.tokenizer = folder / "tokenizer";
    data::write_file_atomically(content.tokenizer, "none\n", ErrorKind::kData);
    data::write_corpus(folder / "corpus", content);
  }

  bool root_;
  SignalWatcher& signals_;
  std::string folder_;
};

struct StepTimes {
  std::vector<double> seconds;  ///< of each step
  parallel::OffloadTimes offload;
  MemoryPlan plan;
  parallel::ZeroOptions zero;
};

void print_step(Runtime& runtime, const Config& config, StepTimes times) {
  std::vector<double>& seconds = times.seconds;
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double tokens = static_cast<double>(config.train.batch * config.data.sequence);
  const std::int64_t peak = runtime.allocator().peak().n;  // before the ceiling's own operands
  const double flops = tokens * flops_per_token(config.model, config.data.sequence);
  const int ranks = runtime.world().size();
  const double ceiling = gemm_ceiling(runtime, config.train.precision) * ranks;
  const double floor = flops * 1e-9 / ceiling;
  if (!runtime.is_root()) return;
  fmt::print(
      "step ranks={} tokens={:.0f} median_ms={:.2f} min_ms={:.2f} max_ms={:.2f} tok/s={:.0f} "
      "gflop/s={:.1f} gemm_ceiling_gflop/s={:.1f} floor_ms={:.2f} floor/median={:.3f} "
      "mem_gib={:.3f} planned_gib={:.3f} model_state_gib={:.3f}\n",
      ranks, tokens, 1e3 * median, 1e3 * seconds.front(), 1e3 * seconds.back(), tokens / median,
      flops * 1e-9 / median, ceiling, 1e3 * floor, floor / median, gib(peak),
      gib(times.plan.total().n), gib(times.plan.zero.model_state().n));
  if (times.zero.offload.any()) {
    const double per_step = 1e3 / static_cast<double>(seconds.size());
    fmt::print(
        "offload copy_ms={:.2f} cpu_ms={:.2f} exposed_ms={:.2f} threads={} host_gib={:.3f}\n",
        times.offload.copy * per_step, times.offload.compute * per_step,
        times.offload.exposed * per_step, times.zero.offload.threads, gib(times.plan.host().n));
  }
  fmt::print("{}\n", runtime.fingerprint());
}

void run_bench_step(const BenchArguments& arguments, const CommandContext& command) {
  parallel::World& world = *command.world;
  ParsedConfig parsed;
  const std::string text = parallel::from_rank0(world.comm(), "config",
                                                [&] { return read_config_file(arguments.config); });
  parallel::collectively(world.comm(), "config", [&] {
    parsed = parse_config(text, arguments.config, arguments.overrides, world.size());
  });
  const Config& config = parsed.config;
  std::vector<std::string> warnings;
  Runtime runtime(world, config, warnings);
  const RandomCorpus files(world.comm(), config, *command.signals);
  const data::Corpus corpus(files.manifest());
  const data::Sampler sampler(corpus, {0},
                              {.sequence = config.data.sequence, .seed = config.run.seed});
  std::unique_ptr<Model> made;
  parallel::collectively(world.comm(), "model", [&] {
    with_places(parsed, [&] {
      made = std::make_unique<Model>(config.model, runtime.shape(config), config.freeze,
                                     config.recompute);
      require_injectable(config, *made);
    });
  });
  Model& model = *made;
  parallel::ZeroOptions zero = resolve_zero(config, model, runtime.memory_budget());
  runtime.place_update(config, zero.offload);
  const MemoryPlan plan = plan_memory(config, model, zero);
  require_fit(plan, runtime.memory_budget(), runtime.host_budget());
  parallel::ZeroStore store(runtime.mesh(), model.units(), zero, runtime.context(),
                            runtime.allocator(), &runtime.host_allocator());
  model.allocate(runtime.context(), runtime.allocator());
  initialize_parameters(store, config.run.seed);
  Stepper stepper(runtime, config, model, store, corpus, sampler);
  TrainState state;
  state.mixture = sampler.initial_state();

  std::vector<double> seconds;
  parallel::OffloadTimes offload;
  for (std::int64_t i = 0; i < arguments.warmup + arguments.steps; ++i) {
    const Stopwatch watch;
    const StepResult result = stepper.run(state, false);
    // An update on the host ends in the next step, which waits for it where it needs it.
    if (!zero.offload.any()) runtime.mesh().wait(runtime.context());
    if (i < arguments.warmup) continue;
    seconds.push_back(watch.seconds());
    offload += result.offload;
  }
  print_step(runtime, config, {.seconds = seconds, .offload = offload, .plan = plan, .zero = zero});
}

struct OpArguments {
  OpSizes sizes;
  std::string device = "auto", precision = "bf16";
};

void declare_device_option(CLI::App& app, std::string& device) {
  app.add_option("--device", device, "auto, cpu or cuda, as train.device")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
}

void declare_op_options(CLI::App& app, OpArguments& op) {
  app.add_option("OPS", op.sizes.ops, "which; all when none is named")
      ->check(CLI::IsMember(bench_op_names()));
  app.add_option("--threads", op.sizes.threads,
                 "of adamw on the CPU, one or more counts; 1, 2, 4 ... cores by default")
      ->transform(integer_option(1, kMostThreads));
  const auto size = [&](const char* name, std::int64_t& value, const char* help) {
    app.add_option(name, value, help)->transform(integer_option(1, 1 << 24))->capture_default_str();
  };
  size("--rows", op.sizes.rows, "tokens of a micro-batch");
  size("--sequence", op.sizes.tokens, "tokens of a sequence; divides --rows");
  size("--hidden", op.sizes.hidden, "");
  size("--heads", op.sizes.heads, "");
  size("--kv-heads", op.sizes.kv_heads, "divides --heads");
  size("--head-dim", op.sizes.head_dim, "");
  size("--ffn", op.sizes.ffn, "");
  size("--vocab", op.sizes.vocab, "");
  declare_device_option(app, op.device);
  app.add_option("--precision", op.precision, "fp32 or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
}

void require_sizes(const OpSizes& s) {
  if (!s.threads.empty() && std::ranges::find(s.ops, "adamw") == s.ops.end()) {
    fail(ErrorKind::kUsage, "--threads is for k25 bench op adamw; name adamw, or leave it out");
  }
  const auto require_divides = [](const char* name, std::int64_t part, const char* of,
                                  std::int64_t whole) {
    if (whole % part == 0) return;
    fail(ErrorKind::kUsage, fmt::format("{} {} does not divide {} {}", name, part, of, whole));
  };
  require_divides("--sequence", s.tokens, "--rows", s.rows);
  require_divides("--kv-heads", s.kv_heads, "--heads", s.heads);
  if (s.head_dim % 2 != 0) {
    fail(ErrorKind::kUsage,
         fmt::format("--head-dim {} is odd; rotary positions need an even width", s.head_dim));
  }
}

// What attention takes depends on the device; before the first op is measured.
void require_sizes_of_device(const OpSizes& s, const Runtime& runtime) {
  try {
    kernels::attention_plan({.batch = s.rows / s.tokens,
                             .tokens = s.tokens,
                             .heads = s.heads,
                             .kv_heads = s.kv_heads,
                             .head_dim = s.head_dim,
                             .dtype = s.precision,
                             .device = runtime.device()});
  } catch (const Error& error) {
    fail(ErrorKind::kUsage,
         std::string("--rows, --sequence, --heads or --head-dim: ") + error.what());
  }
}

// A runtime speaks of the key where the device was chosen; here it was the option.
std::unique_ptr<Runtime> open_runtime(parallel::World& world, const Config& config) {
  std::vector<std::string> warnings;
  try {
    return std::make_unique<Runtime>(world, config, warnings);
  } catch (const parallel::AgreedError& error) {
    std::string text = error.what();
    for (const std::string key : {"train.device:", "train.device"}) {
      for (std::size_t at = text.find(key); at != std::string::npos; at = text.find(key)) {
        text.replace(at, key.size(), "--device");
      }
    }
    throw parallel::AgreedError(error.kind(), text, error.origin());
  }
}

DeviceChoice device_choice(const std::string& name) {
  return name == "cpu"    ? DeviceChoice::kCpu
         : name == "cuda" ? DeviceChoice::kCuda
                          : DeviceChoice::kAuto;
}

std::unique_ptr<Runtime> open_runtime(parallel::World& world, const std::string& device,
                                      std::int64_t threads) {
  Config config;
  config.mesh.shard = world.size();
  config.run.cpu_threads = threads;
  config.train.device = device_choice(device);
  return open_runtime(world, config);
}

void run_ops(OpArguments& op, const CommandContext& command) {
  require_sizes(op.sizes);
  op.sizes.precision = op.precision == "bf16" ? DType::kBFloat16 : DType::kFloat32;
  const std::unique_ptr<Runtime> runtime = open_runtime(*command.world, op.device, 1);
  require_sizes_of_device(op.sizes, *runtime);
  run_bench_op(*runtime, op.sizes);
}

struct TransferArguments {
  std::string device = "auto", ceilings;
  CommSizes comm;
  CopySizes copy;
  std::int64_t threads = 0;  ///< 0: a fair share
};

void declare_transfer_options(CLI::App& app, TransferArguments& arguments, std::int64_t& least,
                              std::int64_t& most) {
  constexpr std::int64_t kMost = std::int64_t{1} << 34;
  app.add_option("--min-bytes", least, "the smallest size; the next is four times it")
      ->transform(integer_option(4, kMost))
      ->capture_default_str();
  app.add_option("--max-bytes", most, "the largest size")
      ->transform(integer_option(4, kMost))
      ->capture_default_str();
  app.add_option("--ceilings", arguments.ceilings,
                 "FILE of k25 doctor --measure, for floors; without it they are n/a");
  declare_device_option(app, arguments.device);
}

/// Of this machine and job, or kUsage. Collective.
Ceilings ceilings_for(Runtime& runtime, const std::string& path) {
  if (path.empty()) return {};
  const std::string text = parallel::from_rank0(runtime.comm(), "ceilings", [&] {
    const CeilingsFile file = read_ceilings(path);
    if (file.device != runtime.device_name() || file.ranks != runtime.world().size()) {
      fail(ErrorKind::kUsage,
           fmt::format("{}: measured with {} ranks on {}, this is a job of {} on {}; measure with "
                       "as many ranks here: k25 doctor --measure FILE",
                       path, file.ranks, file.device, runtime.world().size(),
                       runtime.device_name()));
    }
    return ceilings_json(file);
  });
  return parse_ceilings(text, path).ceilings;
}

void require_order(std::int64_t least, std::int64_t most) {
  if (least <= most) return;
  fail(ErrorKind::kUsage, fmt::format("--min-bytes {} is above --max-bytes {}", least, most));
}

void run_comm(const TransferArguments& arguments, const CommandContext& command) {
  require_order(arguments.comm.least, arguments.comm.most);
  const auto runtime = open_runtime(*command.world, arguments.device, 1);
  run_bench_comm(*runtime, arguments.comm, ceilings_for(*runtime, arguments.ceilings));
}

void run_copy(const TransferArguments& arguments, const CommandContext& command) {
  require_order(arguments.copy.least, arguments.copy.most);
  const std::int64_t threads =
      arguments.threads > 0 ? arguments.threads : fair_threads(*command.world);
  const auto runtime = open_runtime(*command.world, arguments.device, threads);
  run_bench_copy(*runtime, arguments.copy, ceilings_for(*runtime, arguments.ceilings));
}

}  // namespace

Command add_bench(CLI::App& root) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* app = root.add_subcommand("bench", "measured speed against a stated floor");
  app->require_subcommand(1);
  CLI::App* step = app->add_subcommand("step", "one training step on random tokens");
  step->add_option("--config", arguments->config, "YAML file")->required();
  step->add_option("--set", arguments->overrides, "override one key: a.b=value (repeatable)")
      ->allow_extra_args(false);
  step->add_option("--steps", arguments->steps, "timed steps")
      ->transform(integer_option(1, 1'000'000'000))
      ->capture_default_str();
  step->add_option("--warmup", arguments->warmup, "steps before")
      ->transform(integer_option(0, 1'000'000'000))
      ->capture_default_str();
  auto op = std::make_shared<OpArguments>();
  CLI::App* ops = app->add_subcommand("op", "every op at one size");
  declare_op_options(*ops, *op);
  auto transfers = std::make_shared<TransferArguments>();
  CLI::App* comm = app->add_subcommand("comm", "the collectives of a run, by size");
  comm->add_option("--op", transfers->comm.ops, "which (repeatable); all when none is named")
      ->check(CLI::IsMember(bench_comm_ops()))
      ->allow_extra_args(false);
  declare_transfer_options(*comm, *transfers, transfers->comm.least, transfers->comm.most);
  CLI::App* copy = app->add_subcommand("copy", "copies within and between host and GPU, by size");
  copy->add_option("--threads", transfers->threads, "of host copies; a fair share by default")
      ->transform(integer_option(1, kMostThreads));
  declare_transfer_options(*copy, *transfers, transfers->copy.least, transfers->copy.most);
  return {app, Needs::kWorld, [=](const CommandContext& context) {
            if (ops->parsed()) {
              run_ops(*op, context);
            } else if (comm->parsed()) {
              run_comm(*transfers, context);
            } else if (copy->parsed()) {
              run_copy(*transfers, context);
            } else {
              run_bench_step(*arguments, context);
            }
          }};
}

}  // namespace k25::trainer
