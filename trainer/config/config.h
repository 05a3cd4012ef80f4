#pragma once
// The typed configuration of a run. docs/configuration.md lists every key; tests freeze the key
// list. parse.h turns strict YAML into this; everything else in trainer reads only this.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/sampler/sampler.h"
#include "kernels/core/dtype.h"
#include "kernels/kda_gate/kda_gate.h"
#include "kernels/moe/router.h"
#include "optim/decide.h"
#include "parallel/comm/world.h"
#include "parallel/mesh.h"
#include "parallel/zero/zero_store.h"

namespace k25::trainer {

/// Bounds that keep every product of sizes far from overflow.
inline constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxBatch = std::int64_t{1} << 24;

struct RunConfig {
  std::string dir;  ///< run directory
  std::uint64_t seed = 7;
  std::int64_t cpu_threads =
      1;  ///< compute threads of a rank; reduced to its affinity mask with a warning
};

enum class MixerKind : std::uint8_t { kGqa, kKda, kMla };
enum class FeedForwardKind : std::uint8_t { kSwiglu, kMoe };
struct LayerPattern {
  MixerKind mixer = MixerKind::kGqa;
  FeedForwardKind feed_forward = FeedForwardKind::kSwiglu;
};

/// As model.pattern names it: "kda/moe".
std::string layer_name(const LayerPattern& kind);

/// Kimi Delta Attention (trainer/model/kda.h).
struct KdaConfig {
  std::int64_t heads = 0;      ///< resolved: model.heads when null
  std::int64_t key_dim = 0;    ///< of a head; resolved: model.head_dim when null
  std::int64_t value_dim = 0;  ///< of a head; resolved: key_dim when null
  std::int64_t gate_rank = 0;  ///< of both gates' projections; resolved: value_dim when null
  kernels::KdaGate gate = kernels::KdaGate::kSoftplus;
  double lower_bound = -5.0;  ///< of the log decay, with KdaGate::kLowerBound
  kernels::KdaBetaRange beta = kernels::KdaBetaRange::kOne;
};

/// Of the part of queries and keys that all heads share: rotated, or not.
enum class MlaPositions : std::uint8_t { kRope, kNone };

/// Multi-head latent attention (trainer/model/mla.h). kv_rank is 0 when not given; heads are
/// model.heads.
struct MlaConfig {
  std::int64_t kv_rank = 0;
  std::int64_t q_rank = 0;     ///< 0: queries are projected at once
  std::int64_t nope_dim = 0;   ///< of a head; resolved: model.head_dim when null
  std::int64_t rope_dim = 0;   ///< shared by the heads; 0: none
  std::int64_t value_dim = 0;  ///< of a head; resolved: nope_dim when null
  MlaPositions positions = MlaPositions::kRope;
  double norm_eps = 1e-6;  ///< of the norms of latent rows
  bool rotates() const { return rope_dim > 0 && positions == MlaPositions::kRope; }
};

/// Mixture of experts (trainer/model/moe_ffn.h). experts, per_token and ffn are 0 when not given.
struct MoeConfig {
  std::int64_t experts = 0, per_token = 0, ffn = 0;
  std::int64_t shared_experts = 0;
  std::int64_t first_dense_layers = 0;  ///< whose feed-forward is swiglu whatever the pattern says
  std::int64_t groups = 1, top_groups = 1;
  std::int64_t latent = 0;  ///< width that routed experts work in; 0: hidden
  double scaling_factor = 1.0;
  kernels::NormalizeWeights renormalize = kernels::NormalizeWeights::kYes;
  double balance = 0.0;      ///< coefficient of the balance loss of each sequence; 0: none
  double bias_rate = 0.001;  ///< by which the correction bias moves each step
};

struct ModelConfig {
  std::string preset;  ///< "" when null
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0;
  std::int64_t head_dim = 0;          ///< resolved: hidden / heads when null
  std::vector<LayerPattern> pattern;  ///< repeated over the layers
  bool tie_embeddings = false;
  double rope_theta = 10000.0;
  double norm_eps = 1e-6;
  double init_std = 0.02;
  std::optional<LayerPattern> last_layer;  ///< of the last layer, whatever the pattern says
  KdaConfig kda;
  MlaConfig mla;
  MoeConfig moe;

  /// What layer `i`, counted from 0, is made of.
  LayerPattern kind(std::int64_t i) const {
    LayerPattern kind = pattern[static_cast<std::size_t>(i) % pattern.size()];
    if (last_layer && i == layers - 1) kind = *last_layer;
    if (i < moe.first_dense_layers) kind.feed_forward = FeedForwardKind::kSwiglu;
    return kind;
  }
  bool has(MixerKind mixer) const {
    for (std::int64_t i = 0; i < layers; ++i) {
      if (kind(i).mixer == mixer) return true;
    }
    return false;
  }
  bool has(FeedForwardKind feed_forward) const {
    for (std::int64_t i = 0; i < layers; ++i) {
      if (kind(i).feed_forward == feed_forward) return true;
    }
    return false;
  }
};

struct DataConfig {
  std::string train;  ///< corpus manifest
  data::SplitOptions validation;
  std::int64_t sequence = 0;
  std::map<std::string, double> mixture_weights;
  data::OnExhausted on_exhausted = data::OnExhausted::kWrap;
};

/// Where the model lives: kAuto takes a GPU in a CUDA build that finds one.
enum class DeviceChoice : std::uint8_t { kAuto, kCpu, kCuda };

struct TrainConfig {
  std::int64_t steps = 0, batch = 0;
  std::int64_t micro_batch = 0;   ///< resolved
  std::int64_t accumulation = 0;  ///< resolved: batch = micro_batch x accumulation x data ranks
  DType precision = DType::kFloat32;
  DeviceChoice device = DeviceChoice::kAuto;
  std::string init_from;        ///< "" when null
  std::string resume = "auto";  ///< auto | none | PATH | step:N
  bool allow_data_change = false;
};

struct ReduceConfig {
  parallel::ReduceMode mode = parallel::ReduceMode::kOrdered;
  std::int64_t slots = 0;  ///< resolved
};

struct ZeroConfig {
  std::optional<parallel::ReshardAfter> reshard_after;  ///< empty: auto
  std::optional<parallel::ReduceAfter> reduce_after;
  int prefetch = 1;
};

struct OffloadConfig {
  parallel::Place optimizer = parallel::Place::kDevice, params = parallel::Place::kDevice;
  double resident = 0.0;
  double early = 0.0;
  int threads = 0;   ///< 0: auto
  std::string nvme;  ///< "" when null
};

/// Layers count from 1 here, as the bands of a recipe do; both ends belong to the range.
struct LayerRange {
  std::int64_t first = 0, last = 0;
};
enum class RecomputeBand : std::uint8_t { kList, kMiddle, kAll };
struct RecomputeConfig {
  RecomputeBand band = RecomputeBand::kList;
  std::vector<LayerRange> layers;  ///< resolved: ascending, apart, within the model
  bool cheap = false;              ///< norm outputs and SwiGLU products of the other layers
  bool check = false;              ///< compare what is recomputed with what forward had
};

enum class OnCheckpointError : std::uint8_t { kStop, kWarn };
struct CheckpointConfig {
  std::int64_t every = 0;  ///< steps; 0: only at the end
  std::int64_t keep = 2;
  OnCheckpointError on_error = OnCheckpointError::kStop;
  bool asynchronous = true;
  bool best = true;  ///< also keep the step with the lowest validation loss
};

struct EvalConfig {
  std::int64_t every = 0;  ///< steps; 0: only before and after
  std::int64_t batches =
      0;  ///< micro-batches of micro_batch windows per evaluation in all; 0: the whole set
};

enum class LogFormat : std::uint8_t { kText, kJson };
struct LogConfig {
  LogFormat format = LogFormat::kText;
  bool metrics = true, tensorboard = true;
  bool hardware = true;        ///< hw/... metrics of rank 0's host and GPU
  double stall_seconds = 0.5;  ///< that a step must be above the median, and above 3 x the median
};

/// Fault injection for tests and drills.
struct DebugInject {
  std::int64_t step = -1;  ///< 1-based; 0: every step; -1: off
  std::string tensor;
  std::int64_t index = 0;
  double value = 0.0;
};
struct DebugKill {
  int rank = -1;  ///< -1: off
  std::string
      point;  ///< "step", "after_shard_write", "before_rename", "after_rename_before_latest"
  std::int64_t step = 0;
  int signal = 9;
};

/// One rank sleeps while it reads the data of a step.
struct DebugSlowRead {
  int rank = -1;  ///< -1: off
  std::int64_t step = 0;
  double seconds = 0.0;
};

struct Config {
  RunConfig run;
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  optim::OptimOptions optim;        ///< optim.* and numeric.*
  std::vector<std::string> freeze;  ///< optim.freeze: shell patterns on parameter names
  parallel::MeshShape mesh;         ///< shard 0 until resolved from `auto`
  ReduceConfig reduce;
  ZeroConfig zero;
  OffloadConfig offload;
  RecomputeConfig recompute;
  CheckpointConfig checkpoint;
  EvalConfig eval;
  parallel::WorldOptions comm;
  LogConfig log;
  DebugInject inject;
  DebugKill kill;
  DebugSlowRead slow_read;
};

}  // namespace k25::trainer
