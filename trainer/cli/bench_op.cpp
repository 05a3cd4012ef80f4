#include "trainer/cli/bench_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/adamw/adamw.h"
#include "kernels/attention/attention.h"
#include "kernels/convert/convert.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gemm/gemm.h"
#include "kernels/reduce/reduce.h"
#include "kernels/residual/residual.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"
#include "trainer/cli/bench_operands.h"
#include "trainer/doctor/gemm_ceiling.h"

namespace k25::trainer {
namespace {

using namespace kernels;  // the ops under test are this file's vocabulary

enum class Copies : std::uint8_t { kNone, kOut };

/// What bounds an op: it cannot be faster than either.
struct Work {
  double bytes = 0.0, flops = 0.0;
};

double size_of(const std::vector<Tensor>& sets) { return static_cast<double>(sets[0].bytes().n); }

class OpBench {
 public:
  OpBench(Runtime& runtime, const OpSizes& sizes)
      : runtime_(runtime), context_(runtime.context()), s_(sizes), timer_(runtime) {}

  void run() {
    measure_ceilings();
    if (wants("elementwise")) elementwise();
    if (wants("norm")) norm();
    if (wants("embedding")) embedding();
    if (wants("adamw")) optimizer();
    if (wants("gemm")) products();
    if (wants("attention")) {
      attention("attention", AttentionImplementation::kAutomatic);
      if (device() == Device::kCuda) attention("own attention", AttentionImplementation::kOwn);
    }
    if (wants("cross-entropy")) cross_entropy();
    if (!s_.ops.empty() && wants("adamw")) adamw_by_threads();
  }

 private:
  static std::size_t at(int n) { return static_cast<std::size_t>(n % Operands::kSets); }
  Device device() const { return runtime_.device(); }
  bool wants(const char* name) const {
    return s_.ops.empty() || std::ranges::find(s_.ops, name) != s_.ops.end();
  }

  void measure_ceilings() {
    Operands operands(runtime_);
    const std::int64_t count = device() == Device::kCuda ? std::int64_t{1} << 28 : 1 << 24;
    const auto from = operands.make(DType::kFloat32, {count / Operands::kSets});
    const auto to = operands.make(DType::kFloat32, {count / Operands::kSets});
    const double s = timer_.seconds([&](int n) { convert(context_, from[at(n)], to[at(n)]); });
    copy_ = 2 * size_of(from) / s;
    gemm_ = 1e9 * gemm_ceiling(runtime_, s_.precision);
    if (!runtime_.is_root()) return;
    fmt::print("{}\ncopy {:.4g} GB/s, matrix product {:.4g} TFLOP/s, {}\n\n",
               runtime_.fingerprint(), copy_ * 1e-9, gemm_ * 1e-12, dtype_name(s_.precision));
    fmt::print("{:<28}{:>12}{:>12}{:>12}{:>12}{:>10}\n", "op", "ms", "GB/s", "TFLOP/s", "floor ms",
               "floor/ms");
  }

  void report(const std::string& name, const Work& work, const std::function<void(int)>& body) {
    const double s = timer_.seconds(body);
    const double floor = std::max(work.bytes / copy_, work.flops / gemm_);
    if (!runtime_.is_root()) return;
    fmt::print("{:<28}{:>12.4g}{:>12.4g}{:>12.4g}{:>12.4g}{:>10.3f}\n", name, s * 1e3,
               work.bytes / s * 1e-9, work.flops / s * 1e-12, floor * 1e3, floor / s);
  }

  void elementwise() {
    Operands operands(runtime_);
    const auto a = operands.make(s_.precision, {s_.rows, s_.hidden});
    const auto b = operands.make(s_.precision, {s_.rows, s_.hidden});
    const auto y = operands.make(s_.precision, {s_.rows, s_.hidden});
    const ResidualPlan residual =
        residual_plan({.count = s_.rows * s_.hidden, .dtype = s_.precision, .device = device()});
    report("residual", {.bytes = 3 * size_of(a)}, [&](int n) {
      residual_forward(context_, residual, {a[at(n)], b[at(n)]}, {y[at(n)]}, {});
    });

    const auto gate_up = operands.make(s_.precision, {s_.rows, 2 * s_.ffn});
    const auto out = operands.make(s_.precision, {s_.rows, s_.ffn});
    const SwigluPlan swiglu =
        swiglu_plan({.rows = s_.rows, .cols = s_.ffn, .dtype = s_.precision, .device = device()});
    report("swiglu forward", {.bytes = 3 * size_of(out)},
           [&](int n) { swiglu_forward(context_, swiglu, {gate_up[at(n)]}, {out[at(n)]}, {}); });
    report("swiglu backward", {.bytes = 5 * size_of(out)}, [&](int n) {
      swiglu_backward(context_, swiglu, {out[at(n)], gate_up[at(n)]}, {gate_up[at(n)]}, {});
    });

    const RopeDesc desc{.rows = s_.rows,
                        .heads = s_.heads + s_.kv_heads,  // as the model calls it
                        .head_dim = s_.head_dim,
                        .max_position = s_.tokens,
                        .dtype = s_.precision,
                        .device = device()};
    const auto x = operands.make(s_.precision, {s_.rows, desc.heads, s_.head_dim});
    const auto table = operands.make(DType::kFloat32, {s_.tokens, s_.head_dim});
    const auto position = operands.indices(s_.rows, s_.tokens);
    report("rope", {.bytes = 2 * size_of(x) + size_of(table)}, [&](int n) {
      rope_forward(context_, rope_plan(desc), {x[at(n)], position[at(n)], table[at(n)]}, {x[at(n)]},
                   {});
    });
  }

  void norm() {
    Operands operands(runtime_);
    const RmsNormPlan plan = rmsnorm_plan(
        {.rows = s_.rows, .cols = s_.hidden, .dtype = s_.precision, .device = device()});
    const auto x = operands.make(s_.precision, {s_.rows, s_.hidden});
    const auto residual = operands.make(s_.precision, {s_.rows, s_.hidden});
    const auto sum = operands.make(s_.precision, {s_.rows, s_.hidden});
    const auto y = operands.make(s_.precision, {s_.rows, s_.hidden});
    const auto gain = operands.make(DType::kFloat32, {s_.hidden});
    const auto dgain = operands.make(DType::kFloat32, {s_.hidden});
    const auto rstd = operands.make(DType::kFloat32, {s_.rows});
    const Workspace workspace = operands.workspace(plan.workspace_bytes);
    report("rmsnorm + residual forward", {.bytes = 4 * size_of(x)}, [&](int n) {
      rmsnorm_forward(context_, plan,
                      {.x_ND = x[at(n)], .residual_ND = residual[at(n)], .gain_D = gain[at(n)]},
                      {.sum_ND = sum[at(n)], .y_ND = y[at(n)], .rstd_N = rstd[at(n)]}, workspace);
    });
    report("rmsnorm backward", {.bytes = 4 * size_of(x)}, [&](int n) {
      rmsnorm_backward(context_, plan,
                       {.dy_ND = y[at(n)],
                        .sum_ND = sum[at(n)],
                        .gain_D = gain[at(n)],
                        .rstd_N = rstd[at(n)],
                        .d_sum_ND = residual[at(n)]},
                       {.dx_ND = x[at(n)], .dgain_D = dgain[at(n)]}, workspace);
    });
  }

  void embedding() {
    Operands operands(runtime_);
    const EmbeddingPlan plan = embedding_plan({.tokens = s_.rows,
                                               .vocab = s_.vocab,
                                               .hidden = s_.hidden,
                                               .dtype = s_.precision,
                                               .device = device()});
    const auto token = operands.indices(s_.rows, s_.vocab);
    const auto table = operands.make(s_.precision, {s_.vocab, s_.hidden});
    const auto out = operands.make(s_.precision, {s_.rows, s_.hidden});
    const Workspace workspace = operands.workspace(plan.workspace_bytes);
    report("embedding forward", {.bytes = 2 * size_of(out)}, [&](int n) {
      embedding_forward(context_, plan, {token[at(n)], table[at(n)]}, {out[at(n)]}, workspace);
    });
    Operands gradients(runtime_);
    const auto dtable = gradients.make(DType::kFloat32, {s_.vocab, s_.hidden});
    const double row = static_cast<double>(s_.hidden) * 4;
    report("embedding backward", {.bytes = size_of(out) + 2 * row * static_cast<double>(s_.rows)},
           [&](int n) {
             embedding_backward(context_, plan, {token[at(n)], out[at(n)]}, {dtable[at(n)]},
                                workspace);
           });
  }

  void optimizer() {
    Operands operands(runtime_);
    const std::int64_t n_elements = (s_.hidden * s_.ffn * 3 + kChunk - 1) / kChunk * kChunk;
    const auto master = operands.make(DType::kFloat32, {n_elements});
    const auto m = operands.make(DType::kFloat32, {n_elements});
    const auto v = operands.make(DType::kFloat32, {n_elements});
    const auto grad = operands.make(DType::kFloat32, {n_elements});
    const auto sums = operands.make(DType::kFloat64, {n_elements / kChunk});
    report("adamw", {.bytes = 7 * size_of(master)}, [&](int n) {
      adamw_update(context_, {.grad_n = grad[at(n)], .scalars = {}},
                   {.master_n = master[at(n)], .m_n = m[at(n)], .v_n = v[at(n)], .copy_out_n = {}});
    });
    report("chunk square sums", {.bytes = size_of(grad)},
           [&](int n) { chunk_square_sums(context_, grad[at(n)], sums[at(n)]); });
    report("ordered sum", {.bytes = 3 * size_of(grad)},
           [&](int n) { ordered_sum(context_, grad[at(n)].view({1, n_elements}), master[at(n)]); });
  }

  std::vector<std::int64_t> thread_counts() const {
    if (!s_.threads.empty()) return s_.threads;
    std::vector<std::int64_t> counts;
    const std::int64_t cores = available_cores();
    for (std::int64_t n = 1; n < cores; n *= 2) counts.push_back(n);
    counts.push_back(cores);
    return counts;
  }

  /// On a GPU one line; on the CPU one for each thread count.
  void adamw_by_threads() {
    const bool gpu = device() == Device::kCuda;
    Operands operands(runtime_);
    const std::int64_t n_elements = (s_.hidden * s_.ffn * 3 + kChunk - 1) / kChunk * kChunk;
    const auto state = operands.make(DType::kFloat32, {4, n_elements});
    const auto copy = operands.make(DType::kBFloat16, {n_elements});
    const auto seconds = [&](Copies copies) {
      return timer_.seconds([&](int n) {
        const auto row = [&](std::int64_t i) { return state[at(n)].select(0, i); };
        adamw_update(context_, {.grad_n = row(3), .scalars = {}},
                     {.master_n = row(0),
                      .m_n = row(1),
                      .v_n = row(2),
                      .copy_out_n = copies == Copies::kOut ? copy[at(n)] : Tensor()});
      });
    };
    if (runtime_.is_root()) {
      fmt::print("\nadamw, {} parameters\n{:<10}{:>12}{:>12}{:>14}{:>14}{:>14}\n", n_elements,
                 "threads", "ms", "GB/s", "Gparam/s", "copy GB/s", "copy Gparam/s");
    }
    ThreadPool* const own = context_.threads;
    const double count = static_cast<double>(n_elements) * 1e-9;
    for (const std::int64_t n : gpu ? std::vector<std::int64_t>{0} : thread_counts()) {
      const auto pool = n > 1 ? std::make_unique<ThreadPool>(static_cast<int>(n)) : nullptr;
      context_.threads = pool.get();
      const double plain = seconds(Copies::kNone), with_copy = seconds(Copies::kOut);
      context_.threads = own;
      if (!runtime_.is_root()) continue;
      fmt::print("{:<10}{:>12.4g}{:>12.4g}{:>14.4g}{:>14.4g}{:>14.4g}\n",
                 gpu ? "GPU" : std::to_string(n), plain * 1e3, 28 * count / plain, count / plain,
                 30 * count / with_copy, count / with_copy);
    }
  }

  void product(const std::string& name, GemmDesc desc) {
    Operands operands(runtime_);
    desc.dtype_ab = s_.precision;
    desc.device = device();
    const GemmPlan plan = gemm_plan(desc);
    const bool ta = desc.transpose_a == Transpose::kYes, tb = desc.transpose_b == Transpose::kYes;
    const auto a = operands.make(s_.precision, {ta ? desc.k : desc.m, ta ? desc.m : desc.k});
    const auto b = operands.make(s_.precision, {tb ? desc.n : desc.k, tb ? desc.k : desc.n});
    const auto d = operands.make(desc.dtype_d, {desc.m, desc.n});
    const Workspace workspace = operands.workspace(plan.workspace_bytes);
    const Work work{.bytes = size_of(a) + size_of(b) +
                             size_of(d) * (desc.accumulate == Accumulate::kAdd ? 2 : 1),
                    .flops = 2.0 * static_cast<double>(desc.m) * static_cast<double>(desc.n) *
                             static_cast<double>(desc.k)};
    report(name, work, [&](int n) {
      gemm_forward(context_, plan, {a[at(n)], b[at(n)]}, {d[at(n)]}, workspace);
    });
  }

  void products() {
    product("gemm forward", {.m = s_.rows,
                             .n = 2 * s_.ffn,
                             .k = s_.hidden,
                             .transpose_b = Transpose::kYes,
                             .dtype_d = s_.precision});
    product("gemm input gradient",
            {.m = s_.rows, .n = s_.hidden, .k = 2 * s_.ffn, .dtype_d = s_.precision});
    product("gemm weight gradient", {.m = 2 * s_.ffn,
                                     .n = s_.hidden,
                                     .k = s_.rows,
                                     .transpose_a = Transpose::kYes,
                                     .dtype_d = DType::kFloat32,
                                     .accumulate = Accumulate::kAdd});
  }

  void attention(const std::string& name, AttentionImplementation implementation) {
    Operands operands(runtime_);
    const std::int64_t batch = s_.rows / s_.tokens;
    const AttentionPlan plan = attention_plan({.batch = batch,
                                               .tokens = s_.tokens,
                                               .heads = s_.heads,
                                               .kv_heads = s_.kv_heads,
                                               .head_dim = s_.head_dim,
                                               .dtype = s_.precision,
                                               .device = device(),
                                               .implementation = implementation});
    const auto q = operands.make(s_.precision, {batch, s_.tokens, s_.heads, s_.head_dim});
    const auto k = operands.make(s_.precision, {batch, s_.tokens, s_.kv_heads, s_.head_dim});
    const auto v = operands.make(s_.precision, {batch, s_.tokens, s_.kv_heads, s_.head_dim});
    const auto out = operands.make(s_.precision, {batch, s_.tokens, s_.heads, s_.head_dim});
    const auto dq = operands.make(s_.precision, {batch, s_.tokens, s_.heads, s_.head_dim});
    const auto dk = operands.make(s_.precision, {batch, s_.tokens, s_.kv_heads, s_.head_dim});
    const auto dv = operands.make(s_.precision, {batch, s_.tokens, s_.kv_heads, s_.head_dim});
    const auto lse = operands.make(DType::kFloat32, {batch, s_.heads, s_.tokens});
    const Workspace workspace = operands.workspace(plan.workspace_bytes);
    // Two products over half of the square: causal.
    const double flops = 2.0 * static_cast<double>(batch * s_.heads * s_.head_dim) *
                         static_cast<double>(s_.tokens) * static_cast<double>(s_.tokens);
    const double ends = 2 * (size_of(q) + size_of(k));
    report(name + " forward", {.bytes = ends, .flops = flops}, [&](int n) {
      attention_forward(context_, plan, {q[at(n)], k[at(n)], v[at(n)], {}, {}},
                        {out[at(n)], lse[at(n)]}, workspace);
    });
    report(name + " backward", {.bytes = 2 * ends + 2 * size_of(q), .flops = 2.5 * flops},
           [&](int n) {
             attention_backward(
                 context_, plan,
                 {q[at(n)], k[at(n)], v[at(n)], {}, {}, out[at(n)], lse[at(n)], out[at(n)]},
                 {dq[at(n)], dk[at(n)], dv[at(n)]}, workspace);
           });
  }

  void cross_entropy() {
    Operands operands(runtime_);
    const CrossEntropyPlan plan = cross_entropy_plan({.rows = s_.rows,
                                                      .hidden = s_.hidden,
                                                      .vocab = s_.vocab,
                                                      .dtype = s_.precision,
                                                      .device = device()});
    const auto x = operands.make(s_.precision, {s_.rows, s_.hidden});
    const auto weight = operands.make(s_.precision, {s_.vocab, s_.hidden});
    const auto label = operands.indices(s_.rows, s_.vocab);
    const auto nll = operands.make(DType::kFloat32, {s_.rows});
    const auto lse = operands.make(DType::kFloat32, {s_.rows});
    const Workspace workspace = operands.workspace(plan.workspace_bytes);
    const double product = 2.0 * static_cast<double>(s_.rows) * static_cast<double>(s_.hidden) *
                           static_cast<double>(s_.vocab);
    report("cross-entropy forward", {.bytes = size_of(x) + size_of(weight), .flops = product},
           [&](int n) {
             cross_entropy_forward(context_, plan, {x[at(n)], weight[at(n)], label[at(n)]},
                                   {nll[at(n)], lse[at(n)], {}}, workspace);
           });
    Operands gradients(runtime_);
    const auto dweight = gradients.make(DType::kFloat32, {s_.vocab, s_.hidden});
    const auto dx = gradients.make(s_.precision, {s_.rows, s_.hidden});
    report("cross-entropy training",
           {.bytes = 2 * size_of(x) + size_of(weight) + 2 * size_of(dweight), .flops = 3 * product},
           [&](int n) {
             cross_entropy_train(context_, plan, {x[at(n)], weight[at(n)], label[at(n)]},
                                 {nll[at(n)], lse[at(n)], {}, dx[at(n)], dweight[at(n)]},
                                 workspace);
           });
  }

  Runtime& runtime_;
  Context& context_;
  OpSizes s_;
  OpTimer timer_;
  double copy_ = 0.0, gemm_ = 0.0;  // bytes and operations a second
};

}  // namespace

std::vector<std::string> bench_op_names() {
  return {"elementwise", "norm", "embedding", "adamw", "gemm", "attention", "cross-entropy"};
}

void run_bench_op(Runtime& runtime, const OpSizes& sizes) { OpBench(runtime, sizes).run(); }

}  // namespace k25::trainer
