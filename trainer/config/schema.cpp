#include "trainer/config/schema.h"

#include <cmath>

#include "trainer/config/key_kinds.h"
#include "trainer/config/model_keys.h"

namespace k25::trainer {
namespace {

// Values that stay finite and above zero in fp32.
constexpr double kTiny = 1e-30, kLarge = 1e6;

std::vector<Key> data_and_train_keys() {
  return {
      text("data.train", kRequired, "corpus manifest, made by k25 prepare",
           [](Config& c) -> auto& { return c.data.train; }),
      text_list("data.validation.documents", "[]", "patterns of documents kept for validation",
                [](Config& c) -> auto& { return c.data.validation.documents; }),
      number("data.validation.fraction", "0", "share of tokens kept for validation",
             [](Config& c) -> auto& { return c.data.validation.fraction; },
             {0.0, 1.0, Bound::kInclusive, Bound::kExclusive}),
      integer(
          "data.sequence", kRequired, "tokens per sample",
          [](Config& c) -> auto& { return c.data.sequence; }, 1, 1 << 24),
      choice("data.mixture.kind", "static", "how domains are mixed", {"static"},
             [](Config&, std::size_t) {}),
      {.info = {"data.mixture.weights", "map of domain to weight", "{}",
                "empty: domains in proportion to their tokens"},
       .open_map = true,
       .read = read_weights},
      choice("data.on_exhausted", "wrap", "at the end of a domain's epoch", {"wrap", "stop"},
             [](Config& c, std::size_t i) {
               c.data.on_exhausted = i == 0 ? data::OnExhausted::kWrap : data::OnExhausted::kStop;
             }),
      integer("train.steps", kRequired, "steps of the whole run",
              [](Config& c) -> auto& { return c.train.steps; }),
      integer_or(
          "train.batch", "auto", "sequences per step over all ranks",
          [](Config& c) -> auto& { return c.train.batch; }, 0, 1, kMaxBatch),
      integer_or(
          "train.micro_batch", "auto", "sequences of one forward pass on a rank",
          [](Config& c) -> auto& { return c.train.micro_batch; }, 0, 1, kMaxBatch),
      integer_or(
          "train.accumulation", "auto", "micro-batches of a rank per step",
          [](Config& c) -> auto& { return c.train.accumulation; }, 0, 1, kMaxBatch),
      choice("train.precision", "fp32",
             "of activations and gathered parameters (fp16 is not offered: its "
             "range needs loss scaling)",
             {"fp32", "bf16"},
             [](Config& c, std::size_t i) {
               c.train.precision = i == 0 ? DType::kFloat32 : DType::kBFloat16;
             }),
      choice(
          "train.device", "auto",
          "where the model lives; auto: a GPU of its own for each rank in a CUDA build that finds "
          "them, else the CPU",
          {"auto", "cpu", "cuda"},
          [](Config& c, std::size_t i) { c.train.device = static_cast<DeviceChoice>(i); }),
      text("train.init_from", "null", "checkpoint whose weights start a fresh run",
           [](Config& c) -> auto& { return c.train.init_from; }),
      text("train.resume", "auto", "auto | none | PATH | step:N",
           [](Config& c) -> auto& { return c.train.resume; }),
      boolean("train.allow_data_change", "false", "resume although the corpus changed",
              [](Config& c) -> auto& { return c.train.allow_data_change; }),
  };
}

std::vector<Key> optim_keys() {
  using optim::ScheduleKind;
  return {
      choice("optim.type", "adamw", "update rule", {"adamw"}, [](Config&, std::size_t) {}),
      number("optim.lr", kRequired, "peak learning rate",
             [](Config& c) -> auto& { return c.optim.schedule.lr; }, {0.0, kLarge}),
      {.info = {"optim.betas", "two numbers", "[0.9, 0.999]", "decay of the two moments"},
       .read = read_betas},
      number("optim.eps", "1e-08", "added to the root of the second moment",
             [](Config& c) -> auto& { return c.optim.eps; }, {kTiny, 1.0}),
      number("optim.weight_decay", "0", "decoupled; matrices only",
             [](Config& c) -> auto& { return c.optim.weight_decay; }, {0.0, kLarge}),
      number("optim.clip", "0", "largest gradient norm; 0: off",
             [](Config& c) -> auto& { return c.optim.clip; }, {0.0, 1e300}),
      choice("optim.schedule.kind", "constant", "shape of the learning rate after warm-up",
             {"constant", "cosine", "wsd"},
             [](Config& c, std::size_t i) {
               c.optim.schedule.kind = i == 0   ? ScheduleKind::kConstant
                                       : i == 1 ? ScheduleKind::kCosine
                                                : ScheduleKind::kWsd;
             }),
      integer(
          "optim.schedule.warmup", "0", "updates of linear warm-up",
          [](Config& c) -> auto& { return c.optim.schedule.warmup; }, 0),
      number("optim.schedule.min_ratio", "0.1", "final learning rate / peak (cosine, wsd)",
             [](Config& c) -> auto& { return c.optim.schedule.min_ratio; }, {0.0, 1.0}),
      integer_or(
          "optim.schedule.decay", "auto",
          "updates of wsd's final decay; auto: a tenth of train.steps",
          [](Config& c) -> auto& { return c.optim.schedule.decay; }, 0),
      text_list("optim.freeze", "[]", "patterns of parameters that are not trained",
                [](Config& c) -> auto& { return c.freeze; }),
      choice("numeric.on_nan", "skip", "a step whose loss or gradient is not finite",
             {"skip", "stop"},
             [](Config& c, std::size_t i) {
               c.optim.on_nan = i == 0 ? optim::OnNan::kSkip : optim::OnNan::kStop;
             }),
      integer("numeric.max_consecutive_skips", "5", "then the run stops with exit code 5",
              [](Config& c) -> auto& { return c.optim.max_consecutive_skips; }),
  };
}

std::vector<Key> parallel_keys() {
  using parallel::ReduceAfter;
  using parallel::ReduceMode;
  using parallel::ReshardAfter;
  return {
      integer(
          "mesh.replicate", "1", "replicas of the sharded model",
          [](Config& c) -> auto& { return c.mesh.replicate; }, 1, kMaxRanks),
      integer_or(
          "mesh.shard", "auto", "ranks that share one copy; auto: the rest",
          [](Config& c) -> auto& { return c.mesh.shard; }, 0, 1, kMaxRanks),
      integer(
          "mesh.expert", "1", "expert parallelism (needs MoE layers; not built yet)",
          [](Config& c) -> auto& { return c.mesh.expert; }, 1, 1),
      integer(
          "mesh.context", "1", "context parallelism (not built yet)",
          [](Config& c) -> auto& { return c.mesh.context; }, 1, 1),
      choice("reduce.mode", "ordered", "gradient sums: in slot order, or the library's",
             {"ordered", "library"},
             [](Config& c, std::size_t i) {
               c.reduce.mode = i == 0 ? ReduceMode::kOrdered : ReduceMode::kLibrary;
             }),
      integer_or(
          "reduce.slots", "null", "gradient slots; null: one per data rank",
          [](Config& c) -> auto& { return c.reduce.slots; }, 0, 1, kMaxBatch),
      choice("zero.reshard_after", "auto", "when gathered parameters are freed",
             {"auto", "forward", "micro_batch", "step"},
             [](Config& c, std::size_t i) {
               c.zero.reshard_after.reset();
               if (i > 0) c.zero.reshard_after = static_cast<ReshardAfter>(i - 1);
             }),
      choice("zero.reduce_after", "auto",
             "when gradients are reduced to shards (reduce.mode: library only)",
             {"auto", "micro_batch", "step"},
             [](Config& c, std::size_t i) {
               c.zero.reduce_after.reset();
               if (i > 0) c.zero.reduce_after = static_cast<ReduceAfter>(i - 1);
             }),
      integer(
          "zero.prefetch", "1", "units gathered ahead",
          [](Config& c) -> auto& { return c.zero.prefetch; }, 0, 64),
  };
}

std::vector<Key> offload_keys() {
  constexpr auto kDevice = parallel::Place::kDevice;
  constexpr auto kHost = parallel::Place::kHost;
  return {
      choice("offload.optimizer", "device",
             "where masters and moments live and AdamW runs; host: pinned memory, updated by the "
             "CPU behind the next step's first units",
             {"device", "host"},
             [](Config& c, std::size_t i) { c.offload.optimizer = i == 0 ? kDevice : kHost; }),
      choice("offload.params", "device",
             "where a rank's part of the parameters waits for its gather; host without "
             "offload.optimizer: host keeps the masters there too",
             {"device", "host"},
             [](Config& c, std::size_t i) { c.offload.params = i == 0 ? kDevice : kHost; }),
      number("offload.resident", "0",
             "share of the offloaded state that stays on the device, lowest layers first",
             [](Config& c) -> auto& { return c.offload.resident; }, {0.0, 1.0}),
      number("offload.early", "0",
             "share of what the CPU updates, highest layers first, with room for a second copy: it "
             "is updated during the last backward pass, in the hope that no clip comes",
             [](Config& c) -> auto& { return c.offload.early; }, {0.0, 1.0}),
      integer_or(
          "offload.threads", "auto",
          "CPU threads of a rank's update; auto: the cores near its GPU that fall to it, less two "
          "for the step",
          [](Config& c) -> auto& { return c.offload.threads; }, 0, 1, 4096),
      text("offload.nvme", "null",
           "folder of a local disk for the moments that the CPU updates; null: they are in memory",
           [](Config& c) -> auto& { return c.offload.nvme; }),
  };
}

std::vector<Key> recompute_and_comm_keys() {
  return {
      {.info = {"recompute.layers", "all | middle | list of layers", "[]",
                "layers, counted from 1, that keep only their input and run forward again"},
       .read = read_recompute},
      boolean("recompute.cheap", "false",
              "the other layers recompute norm outputs and SwiGLU products",
              [](Config& c) -> auto& { return c.recompute.cheap; }),
      boolean("recompute.check", "false", "compare each recomputed layer's output with forward's",
              [](Config& c) -> auto& { return c.recompute.check; }),
      {.info = {"comm.timeout_s", "number", "60",
                "seconds without progress after which a peer counts as lost"},
       .read =
           [](const YamlNode& node, Config& c, std::string& canonical) {
             double seconds = 0.0;
             std::string expected = read_number(node, {0.001, 1e6}, seconds);
             c.comm.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
             canonical = yaml_number(seconds);
             return expected;
           }},
      boolean("comm.check", "false", "compare every collective call across ranks",
              [](Config& c) -> auto& { return c.comm.check; }),
      integer(
          "comm.max_chunk", "1073741824", "bytes of one message; larger ones are cut",
          [](Config& c) -> auto& { return c.comm.max_chunk.n; }, 4, std::int64_t{1} << 30),
  };
}

std::vector<Key> output_keys() {
  return {
      integer(
          "checkpoint.every", "0", "steps between checkpoints; 0: only at the end",
          [](Config& c) -> auto& { return c.checkpoint.every; }, 0),
      integer("checkpoint.keep", "2", "checkpoints kept besides the best",
              [](Config& c) -> auto& { return c.checkpoint.keep; }),
      choice("checkpoint.on_error", "stop", "when a save fails", {"stop", "warn"},
             [](Config& c, std::size_t i) {
               c.checkpoint.on_error = i == 0 ? OnCheckpointError::kStop : OnCheckpointError::kWarn;
             }),
      boolean("checkpoint.asynchronous", "true", "write behind the next steps",
              [](Config& c) -> auto& { return c.checkpoint.asynchronous; }),
      boolean("checkpoint.best", "true", "keep the step with the lowest validation loss",
              [](Config& c) -> auto& { return c.checkpoint.best; }),
      integer(
          "eval.every", "0", "steps between evaluations; 0: before and after only",
          [](Config& c) -> auto& { return c.eval.every; }, 0),
      integer(
          "eval.batches", "0", "micro-batches per evaluation in all; 0: the whole set",
          [](Config& c) -> auto& { return c.eval.batches; }, 0),
      choice("log.format", "text", "of the progress line", {"text", "json"},
             [](Config& c, std::size_t i) {
               c.log.format = i == 0 ? LogFormat::kText : LogFormat::kJson;
             }),
      boolean("log.metrics", "true", "write metrics.jsonl",
              [](Config& c) -> auto& { return c.log.metrics; }),
      boolean("log.tensorboard", "true", "write TensorBoard events",
              [](Config& c) -> auto& { return c.log.tensorboard; }),
      boolean("log.hardware", "true", "hw/... metrics of rank 0's host and GPU",
              [](Config& c) -> auto& { return c.log.hardware; }),
      number("log.stall_s", "0.5",
             "a step above 3 x the running median, and so many seconds above it, is a stall",
             [](Config& c) -> auto& { return c.log.stall_seconds; }, {0.0, kLarge}),
  };
}

std::vector<Key> debug_keys() {
  return {
      integer(
          "debug.inject.step", "-1", "spoil a number at this step; 0: every step; -1: off",
          [](Config& c) -> auto& { return c.inject.step; }, -1),
      text("debug.inject.tensor", "null",
           "parameter whose gradient is spoilt; loss: the loss alone",
           [](Config& c) -> auto& { return c.inject.tensor; }),
      integer(
          "debug.inject.index", "0", "element of it",
          [](Config& c) -> auto& { return c.inject.index; }, 0),
      {.info = {"debug.inject.value", "number | nan | inf | -inf", "nan", "what it becomes"},
       .read = read_inject_value},
      integer(
          "debug.kill.rank", "-1", "rank that is killed; -1: off",
          [](Config& c) -> auto& { return c.kill.rank; }, -1, 1 << 20),
      choice("debug.kill.point", "step", "where",
             {"step", "after_shard_write", "before_rename", "after_rename_before_latest"},
             [](Config& c, std::size_t i) {
               static const char* const kNames[] = {"step", "after_shard_write", "before_rename",
                                                    "after_rename_before_latest"};
               c.kill.point = kNames[i];
             }),
      integer(
          "debug.kill.step", "0", "step before which, or whose save",
          [](Config& c) -> auto& { return c.kill.step; }, 0),
      integer(
          "debug.kill.signal", "9", "9: killed, 19: stopped",
          [](Config& c) -> auto& { return c.kill.signal; }, 1, 64),
      integer(
          "debug.slow_read.rank", "-1", "rank that sleeps while it reads data; -1: off",
          [](Config& c) -> auto& { return c.slow_read.rank; }, -1, 1 << 20),
      integer(
          "debug.slow_read.step", "0", "the step that it reads for",
          [](Config& c) -> auto& { return c.slow_read.step; }, 0),
      number("debug.slow_read.seconds", "0", "how long it sleeps",
             [](Config& c) -> auto& { return c.slow_read.seconds; }, {0.0, kLarge}),
  };
}

std::vector<Key> build_schema() {
  std::vector<Key> keys = {
      text("run.dir", kRequired, "run directory", [](Config& c) -> auto& { return c.run.dir; }),
      integer(
          "run.seed", "7", "of initial weights and data order",
          [](Config& c) -> auto& { return c.run.seed; }, 0),
      integer(
          "run.cpu_threads", "1", "compute threads of a rank",
          [](Config& c) -> auto& { return c.run.cpu_threads; }, 1, 4096),
  };
  for (const auto& part :
       {model_keys(), kda_keys(), mla_keys(), moe_keys(), data_and_train_keys(), optim_keys(),
        parallel_keys(), offload_keys(), recompute_and_comm_keys(), output_keys(), debug_keys()}) {
    keys.insert(keys.end(), part.begin(), part.end());
  }
  return keys;
}

}  // namespace

const std::vector<Key>& schema() {
  static const std::vector<Key> kKeys = build_schema();
  return kKeys;
}

}  // namespace k25::trainer
