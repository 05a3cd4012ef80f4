#include "trainer/model/model.h"

#include <fnmatch.h>

#include <algorithm>

#include "kernels/core/host_access.h"
#include "kernels/core/profiler.h"
#include "kernels/moe/correction_bias.h"
#include "trainer/model/gqa.h"
#include "trainer/model/mla.h"

namespace k25::trainer {
namespace {

using parallel::Phase;
using parallel::Placement;

/// kWritten: the head's product comes first.
parallel::ParameterSpec table_parameter(const std::string& name, const ModelConfig& m,
                                        parallel::GradientStart start) {
  return {.name = name,
          .shape = {m.vocab, m.hidden},
          .slices = {{name, 0, m.vocab, {parallel::InitKind::kNormal, m.init_std}}},
          .gradient_start = start};
}

kernels::Accumulate first_use(const parallel::ZeroStore& store, int unit) {
  return store.gradient_state(unit) == parallel::GradientState::kUnwritten
             ? kernels::Accumulate::kOverwrite
             : kernels::Accumulate::kAdd;
}

parallel::ParameterSpec final_gain_parameter(const ModelConfig& m) {
  return {.name = "final_norm",
          .shape = {m.hidden},
          .placement = Placement::kReplicated,
          .fp32 = true,
          .decay = false,
          .slices = {{"final_norm", 0, m.hidden, {parallel::InitKind::kOnes, 0.0}}}};
}

void freeze_matching(std::vector<parallel::UnitSpec>& units, const std::string& pattern) {
  bool matched = false;
  for (parallel::UnitSpec& unit : units) {
    for (parallel::ParameterSpec& parameter : unit.parameters) {
      if (fnmatch(pattern.c_str(), parameter.name.c_str(), 0) != 0) continue;
      parameter.frozen = true;
      matched = true;
    }
  }
  if (!matched) {
    fail(ErrorKind::kUsage, "optim.freeze: '" + pattern +
                                "' matches no parameter (names look like 'layers.0.attention.qkv', "
                                "'embedding', 'final_norm')");
  }
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

Keep keep_of(const RecomputeConfig& recompute, int layer) {
  if (contains_layer(recompute.layers, layer)) return Keep::kInput;
  return recompute.cheap ? Keep::kCostly : Keep::kAll;
}

}  // namespace

// What of model.pattern the GPU lacks.
void require_device(const ModelConfig& config, Device device) {
  if (device == Device::kCpu) return;
  const auto refuse = [](const std::string& what) {
    fail(ErrorKind::kUsage,
         what + "; set train.device: cpu (k25 plan: --gpu cpu), or use other layers");
  };
  for (std::int64_t i = 0; i < config.layers; ++i) {
    if (config.kind(i).feed_forward != FeedForwardKind::kMoe) continue;
    refuse("model.pattern: layer " + std::to_string(i + 1) +
           " has moe, which runs on the CPU only so far");
  }
  for (std::int64_t i = 0; i < config.layers; ++i) {
    if (config.kind(i).mixer != MixerKind::kMla) continue;
    refuse("model.pattern: layer " + std::to_string(i + 1) +
           " has mla, which runs on the CPU only so far");
  }
  if (!config.has(MixerKind::kKda)) return;
  for (const auto& [key, dim] : {std::pair{"key_head_dim", config.kda.key_dim},
                                 std::pair{"value_head_dim", config.kda.value_dim}}) {
    if (dim == 64 || dim == 128) continue;
    refuse(std::string("model.kda.") + key + ": " + std::to_string(dim) +
           ", and the heads of kda layers are 64 or 128 wide on a GPU");
  }
}

Model::Model(const ModelConfig& config, const RunShape& shape,
             const std::vector<std::string>& freeze, const RecomputeConfig& recompute)
    : config_(config),
      shape_(shape),
      tied_(config.tie_embeddings),
      embedding_(kernels::embedding_plan({.tokens = shape.rows(),
                                          .vocab = config.vocab,
                                          .hidden = config.hidden,
                                          .dtype = shape.compute,
                                          .device = shape.device})),
      final_norm_(kernels::rmsnorm_plan({.rows = shape.rows(),
                                         .cols = config.hidden,
                                         .dtype = shape.compute,
                                         .eps = config.norm_eps,
                                         .device = shape.device})),
      loss_(kernels::cross_entropy_plan({.rows = shape.rows(),
                                         .hidden = config.hidden,
                                         .vocab = config.vocab,
                                         .dtype = shape.compute,
                                         .device = shape.device})) {
  require_device(config, shape.device);
  UnitBuilder replicated("replicated", Placement::kReplicated);
  UnitBuilder embedding("embedding", Placement::kSharded);
  embedding.add(
      table_parameter("embedding", config,
                      tied_ ? parallel::GradientStart::kWritten : parallel::GradientStart::kZeros));
  units_.push_back(embedding.spec());
  const auto check = recompute.check ? Layer::Check::kYes : Layer::Check::kNo;
  for (int i = 0; i < config.layers; ++i) {
    UnitBuilder unit("layers." + std::to_string(i), Placement::kSharded);
    layers_.push_back(std::make_unique<Layer>(config, shape, i, keep_of(recompute, i), check,
                                              rope_tables_, unit, replicated));
    units_.push_back(unit.spec());
  }
  if (!tied_) {
    UnitBuilder head("head", Placement::kSharded);
    head.add(table_parameter("head", config, parallel::GradientStart::kWritten));
    units_.push_back(head.spec());
  }
  final_gain_index_ = replicated.add(final_gain_parameter(config));
  units_.push_back(replicated.spec());
  for (const std::string& pattern : freeze) freeze_matching(units_, pattern);
  for (const auto& layer : layers_) {  // a bias is never trained, so `frozen` does not tell
    const int bias = layer->correction_bias_index();
    moves_bias_.push_back(bias >= 0 && !matches_any(freeze, units_.back().parameters[bias].name));
  }
  measure();
}

std::int64_t Model::num_parameters() const {
  std::int64_t n = 0;
  for (const parallel::UnitSpec& unit : units_) {
    for (const parallel::ParameterSpec& parameter : unit.parameters) n += parameter.numel();
  }
  return n;
}

void Model::take_head(Arena& saved) {
  const DType statistic = statistic_dtype(shape_.compute);
  normed_ = saved.take(shape_.compute, {shape_.rows(), config_.hidden});
  d_normed_ = saved.take(shape_.compute, {shape_.rows(), config_.hidden});
  rstd_ = saved.take(statistic, {shape_.rows()});
  lse_ = saved.take(statistic, {shape_.rows()});
  output_.nll_N = saved.take(statistic, {shape_.rows()});
  output_.argmax_N = saved.take(DType::kInt32, {shape_.rows()});
}

void Model::measure() {
  Arena saved, scratch;
  saved.take(shape_.compute, {shape_.rows(), config_.hidden});
  scratch.take(shape_.compute, {shape_.rows(), config_.hidden});  // an update, the gradient of h
  Bytes workspace = larger(larger(embedding_.workspace_bytes, final_norm_.workspace_bytes),
                           loss_.workspace_bytes);
  for (const auto& layer : layers_) {
    layer->measure(saved, scratch);
    workspace = larger(workspace, layer->workspace_bytes());
  }
  take_head(saved);
  if (shape_.compute != DType::kFloat64) {
    workspace = larger(workspace, kernels::gemm_plan(logits_gemm()).workspace_bytes);
    ScratchScope scope(scratch);
    scratch.take(DType::kFloat32, {1, config_.vocab});
  }
  memory_ = {
      .activations = saved.peak(),
      .scratch = scratch.peak(),
      .workspace = workspace,
      .tables = {rope_bytes(config_.head_dim).n + rope_bytes(mla_table_cols()).n + load_bytes().n}};
}

// Of one table, up to where the next may begin.
Bytes Model::rope_bytes(std::int64_t head_dim) const {
  return {align_up(bytes_of(Elems{shape_.tokens * head_dim}, statistic_dtype(shape_.compute)).n)};
}

std::int64_t Model::mla_table_cols() const {
  return config_.has(MixerKind::kMla) && config_.mla.rotates() ? config_.mla.rope_dim : 0;
}

Bytes Model::load_bytes() const {
  const bool any = config_.has(FeedForwardKind::kMoe);
  return bytes_of(Elems{any ? config_.layers * config_.moe.experts : 0}, DType::kInt64);
}

void Model::allocate(const Context& context, Allocator& allocator) {
  saved_ = Arena(memory_.activations, allocator, "activations");
  scratch_ = Arena(memory_.scratch, allocator, "scratch");
  workspace_ = Buffer(memory_.workspace, allocator, "op workspace");
  tables_ = Buffer(memory_.tables, allocator, "tables");
  Bytes begin{0};
  const auto fill = [&](const kernels::RopeDesc& desc) {
    const Tensor table =
        tables_.view(statistic_dtype(shape_.compute), {shape_.tokens, desc.head_dim}, begin);
    fill_on_host(context, table, [&](const Tensor& host) { kernels::rope_fill_table(desc, host); });
    begin.n += rope_bytes(desc.head_dim).n;
    return table;
  };
  rope_tables_.gqa = fill(GqaMixer::rope_desc(config_, shape_));
  if (mla_table_cols() > 0) rope_tables_.mla = fill(MlaMixer::rope_desc(config_, shape_, 1));
  if (load_bytes().n == 0) return;
  expert_load_ = Tensor(static_cast<std::byte*>(tables_.data()) + begin.n, DType::kInt64,
                        {config_.layers, config_.moe.experts});
  clear_expert_load();
}

void Model::clear_expert_load() {
  if (expert_load_) std::fill_n(expert_load_.data<std::int64_t>(), expert_load_.numel(), 0);
}

void Model::move_correction_biases(parallel::ZeroStore& store) const {
  if (!expert_load_) return;
  const parallel::UnitLayout& layout = store.layout(replicated_unit());
  const Tensor master = store.master(replicated_unit());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!moves_bias_[i]) continue;
    const int index = layers_[i]->correction_bias_index();
    const std::int64_t begin = layout.offsets[static_cast<std::size_t>(index)];
    kernels::moe_update_correction_bias(master.slice(0, begin, begin + config_.moe.experts),
                                        expert_load_.select(0, static_cast<int>(i)),
                                        config_.moe.bias_rate);
  }
}

int Model::forward_unit(std::size_t position) const {
  return position <= layers_.size() ? static_cast<int>(position) : head_unit();
}

void Model::prefetch_around(parallel::ZeroStore& store, std::int64_t position,
                            int direction) const {
  const std::int64_t next = position + direction;
  const std::int64_t last = static_cast<std::int64_t>(layers_.size()) + 1;
  if (next >= 0 && next <= last) store.prefetch(forward_unit(static_cast<std::size_t>(next)));
}

BlockRun Model::begin(Context& context, const BatchTensors& batch) {
  return {context, batch, saved_, scratch_, {workspace_.data(), workspace_.size()}, expert_load_};
}

Model::Output Model::forward(Context& context, parallel::ZeroStore& store,
                             const BatchTensors& batch, Purpose purpose) {
  saved_.rewind({});
  BlockRun run = begin(context, batch);
  const std::vector<Tensor>& replicated = store.acquire(replicated_unit());
  hidden_.clear();

  embedded_ = saved_.take(shape_.compute, {shape_.rows(), config_.hidden});
  {
    const ProfileRange range(context, "embedding");
    const std::vector<Tensor>& embedding = store.acquire(0);
    prefetch_around(store, 0, +1);
    kernels::embedding_forward(context, embedding_, {batch.tokens_N, embedding[0]}, {embedded_},
                               run.workspace);
    store.release(0, Phase::kForward);
  }

  ScratchScope scope(scratch_);
  const Tensor update = scratch_.take(shape_.compute, {shape_.rows(), config_.hidden});
  StreamRows h{embedded_, {}, {}};
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const ProfileRange range(context, "layer", static_cast<std::int64_t>(i));
    const int unit = forward_unit(i + 1);
    const std::vector<Tensor>& parameters = store.acquire(unit);
    prefetch_around(store, static_cast<std::int64_t>(i) + 1, +1);
    hidden_.push_back(h.rows());
    h = layers_[i]->forward(run, {parameters, replicated}, h, update);
    store.release(unit, Phase::kForward);
  }
  hidden_.push_back(h.rows());

  const ProfileRange range(context, "head");
  take_head(saved_);
  norm_rows(run, final_norm_, h, replicated[final_gain_index_], normed_, rstd_);
  run_head(run, store, purpose);
  store.release(replicated_unit(), Phase::kForward);
  return output_;
}

void Model::run_head(BlockRun& run, parallel::ZeroStore& store, Purpose purpose) {
  const ConstTensor head = store.acquire(head_unit())[0];
  const kernels::CrossEntropyForwardIn in{normed_, head, run.batch.labels_N};
  if (purpose == Purpose::kEvaluate) {
    kernels::cross_entropy_forward(run.context, loss_, in, {output_.nll_N, lse_, output_.argmax_N},
                                   run.workspace);
    return store.release(head_unit(), Phase::kForward);
  }
  // The layers that backward begins with follow, not those of another forward.
  prefetch_around(store, static_cast<std::int64_t>(layers_.size()) + 1, -1);
  const Tensor d_head = store.gradient(head_unit())[0];
  kernels::cross_entropy_train(
      run.context, loss_, in,
      {output_.nll_N, lse_, output_.argmax_N, d_normed_, d_head, first_use(store, head_unit())},
      run.workspace);
  store.release(head_unit(), Phase::kBackward);
  if (!tied_) store.gradient_done(head_unit());
}

void Model::backward(Context& context, parallel::ZeroStore& store, const BatchTensors& batch) {
  BlockRun run = begin(context, batch);
  const std::vector<Tensor>& replicated = store.acquire(replicated_unit());
  const std::vector<Tensor>& d_replicated = store.gradient(replicated_unit());
  ScratchScope scope(scratch_);
  const Tensor d_h = scratch_.take(shape_.compute, {shape_.rows(), config_.hidden});
  kernels::rmsnorm_backward(context, final_norm_,
                            {.dy_ND = d_normed_,
                             .sum_ND = hidden_.back(),
                             .gain_D = replicated[final_gain_index_],
                             .rstd_N = rstd_,
                             .d_sum_ND = {}},
                            {.dx_ND = d_h, .dgain_D = d_replicated[final_gain_index_]},
                            run.workspace);
  for (auto i = static_cast<std::int64_t>(layers_.size()) - 1; i >= 0; --i) {
    const ProfileRange range(context, "layer", i);
    const int unit = forward_unit(static_cast<std::size_t>(i) + 1);
    const std::vector<Tensor>& parameters = store.acquire(unit);
    if (i > 0) prefetch_around(store, i + 1, -1);  // the embedding's backward needs no parameters
    const std::vector<Tensor>& gradients = store.gradient(unit);
    layers_[i]->backward(run, {parameters, replicated},
                         {gradients, d_replicated, first_use(store, unit)}, hidden_[i], d_h);
    store.release(unit, Phase::kBackward);
    store.gradient_done(unit);
  }
  const ProfileRange range(context, "embedding");
  const std::vector<Tensor>& d_embedding = store.gradient(0);
  if (d_embedding[0]) {
    kernels::embedding_backward(context, embedding_, {batch.tokens_N, d_h}, {d_embedding[0]},
                                run.workspace);
  }
  store.gradient_done(0);
  store.release(replicated_unit(), Phase::kBackward);
  store.gradient_done(replicated_unit());
}

std::vector<float> Model::logits(Context& context, parallel::ZeroStore& store, std::int64_t row) {
  const ConstTensor x = normed_.slice(0, row, row + 1);
  const std::vector<Tensor>& head = store.acquire(head_unit());
  std::vector<float> logits(static_cast<std::size_t>(config_.vocab));
  ScratchScope scope(scratch_);
  const Tensor out = scratch_.take(DType::kFloat32, {1, config_.vocab});
  kernels::gemm_forward(context, kernels::gemm_plan(logits_gemm()), {x, head[0]}, {out},
                        {workspace_.data(), workspace_.size()});
  read_to_host(context, out, logits.data());
  store.release(head_unit(), Phase::kForward);
  return logits;
}

kernels::GemmDesc Model::logits_gemm() const {
  return {.m = 1,
          .n = config_.vocab,
          .k = config_.hidden,
          .transpose_b = kernels::Transpose::kYes,
          .dtype_ab = shape_.compute,
          .dtype_d = DType::kFloat32,
          .device = shape_.device};
}

}  // namespace k25::trainer
