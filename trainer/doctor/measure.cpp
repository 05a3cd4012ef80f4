#include "trainer/doctor/measure.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/convert/convert.h"
#include "kernels/core/host_access.h"
#include "kernels/core/stopwatch.h"
#include "trainer/doctor/binding.h"
#include "trainer/doctor/gemm_ceiling.h"

namespace k25::trainer {
namespace {

class Measurement {
 public:
  explicit Measurement(Runtime& runtime)
      : runtime_(runtime),
        gpu_(runtime.device() == Device::kCuda),
        precision_(gpu_ ? DType::kBFloat16 : DType::kFloat32) {}

  Ceilings run() {
    Ceilings c{.precision = precision_};
    c.copy_gb = copy();
    c.gemm_tflop = slowest(1e-3 * gemm_ceiling(runtime_, precision_));
    attention(c);
    c.triad_gb = triad();
    if (runtime_.world().size() > 1) transfers(c);
    return c;
  }

 private:
  /// Seconds of one call, the best of some rounds of calls that fill at least 50 ms. The first
  /// round, which takes memory and chooses algorithms, does not count. All ranks make as many
  /// calls.
  double seconds(const std::function<void()>& call) {
    constexpr int kRounds = 5;
    const auto round = [&](std::int64_t calls) {
      const Stopwatch watch;
      for (std::int64_t i = 0; i < calls; ++i) call();
      runtime_.mesh().wait(runtime_.context());
      return watch.seconds() / static_cast<double>(calls);
    };
    round(1);
    const double once = std::max(1.0 / slowest(1.0 / std::max(round(1), 1e-7)), 1e-7);
    const auto calls = std::clamp<std::int64_t>(static_cast<std::int64_t>(0.05 / once), 1, 1000);
    double best = round(calls);
    for (int i = 1; i < kRounds; ++i) best = std::min(best, round(calls));
    return best;
  }

  /// The smallest of all ranks.
  double slowest(double rate) {
    runtime_.comm()
        .all_reduce_small({.name = "measure"},
                          {.values = &rate, .count = 1, .op = parallel::ReduceOp::kMin})
        .wait();
    return rate;
  }

  Tensor make(DType dtype, std::initializer_list<std::int64_t> shape) {
    buffers_.emplace_back(Tensor(nullptr, dtype, shape).bytes(), runtime_.allocator());
    const Tensor t = buffers_.back().view(dtype, shape);
    fill_on_host(runtime_.context(), t, [](const Tensor& host) {
      for (std::int64_t i = 0; i < host.numel(); ++i) {
        const float x = 0.001F * static_cast<float>(i % 1021) - 0.5F;
        if (host.dtype() == DType::kBFloat16) {
          host.data<BFloat16>()[i] = BFloat16(x);
        } else {
          host.data<float>()[i] = x;
        }
      }
    });
    return t;
  }

  Tensor make_integers(std::initializer_list<std::int64_t> shape, std::int32_t value) {
    buffers_.emplace_back(Tensor(nullptr, DType::kInt32, shape).bytes(), runtime_.allocator());
    const Tensor t = buffers_.back().view(DType::kInt32, shape);
    fill_on_host(runtime_.context(), t, [value](const Tensor& host) {
      std::fill_n(host.data<std::int32_t>(), host.numel(), value);
    });
    return t;
  }

  double copy() {
    const std::int64_t count = gpu_ ? std::int64_t{1} << 28 : std::int64_t{1} << 23;
    const Tensor from = make(DType::kFloat32, {count}), to = make(DType::kFloat32, {count});
    const double s = seconds([&] { kernels::convert(runtime_.context(), from, to); });
    const double rate = slowest(2e-9 * static_cast<double>(from.bytes().n) / s);
    buffers_.clear();
    return rate;
  }

  /// By the implementation that a step takes: cuDNN on a GPU where it is built in.
  void attention(Ceilings& c) {
    const std::int64_t batch = gpu_ ? 8 : 1, tokens = gpu_ ? 4096 : 512;
    const std::int64_t heads = gpu_ ? 16 : 4, kv_heads = heads / 2, head_dim = gpu_ ? 128 : 64;
    const kernels::AttentionPlan plan = kernels::attention_plan({.batch = batch,
                                                                 .tokens = tokens,
                                                                 .heads = heads,
                                                                 .kv_heads = kv_heads,
                                                                 .head_dim = head_dim,
                                                                 .dtype = precision_,
                                                                 .device = runtime_.device()});
    const auto rows = [&](std::int64_t h) {
      return make(precision_, {batch, tokens, h, head_dim});
    };
    const Tensor q = rows(heads), out = rows(heads), d_q = rows(heads), d_out = rows(heads);
    const Tensor k = rows(kv_heads), v = rows(kv_heads), d_k = rows(kv_heads), d_v = rows(kv_heads);
    const Tensor lse = make(DType::kFloat32, {batch, heads, tokens});
    // With borders, as in a step: they belong to what cuDNN compiles. Each sequence is a document.
    const Tensor begin = make_integers({batch, tokens}, 0);
    const Tensor end = make_integers({batch, tokens}, static_cast<std::int32_t>(tokens));
    const Buffer scratch(plan.workspace_bytes, runtime_.allocator());
    const Workspace workspace{scratch.data(), scratch.size()};
    Context& context = runtime_.context();
    // Two products over the visible half; backward counts five.
    const double visible = 0.5 * static_cast<double>(tokens) * static_cast<double>(tokens + 1);
    const double product = 2.0 * static_cast<double>(batch * heads * head_dim) * visible;
    const double forward = seconds([&] {
      kernels::attention_forward(context, plan, {q, k, v, begin, end}, {out, lse}, workspace);
    });
    const double backward = seconds([&] {
      kernels::attention_backward(context, plan, {q, k, v, begin, end, out, lse, d_out},
                                  {d_q, d_k, d_v}, workspace);
    });
    c.attention_forward_tflop = slowest(2e-12 * product / forward);
    c.attention_backward_tflop = slowest(5e-12 * product / backward);
    buffers_.clear();
  }

  /// Host memory, with the threads of the rank: a = b + s c.
  double triad() {
    constexpr std::int64_t kCount = std::int64_t{1} << 23;
    HostAllocator host;
    const Buffer memory(Bytes{3 * kCount * 4}, host);
    auto* const a = static_cast<float*>(memory.data());
    const float* const b = a + kCount;
    const float* const c = b + kCount;
    const auto body = [a, b, c](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) a[i] = b[i] + 3.0F * c[i];
    };
    const double s = seconds([&] {
      parallel_for(runtime_.context().threads, kCount, std::int64_t{1} << 16, std::ref(body));
    });
    return slowest(12e-9 * static_cast<double>(kCount) / s);
  }

  parallel::Queue queue() const {
    return gpu_ ? parallel::Queue::on_stream(runtime_.context().stream) : parallel::Queue::host();
  }

  void transfers(Ceilings& c) {
    parallel::Communicator& comm = runtime_.mesh().data_comm();
    const std::int64_t ranks = comm.size();
    const std::int64_t own = (gpu_ ? std::int64_t{1} << 26 : std::int64_t{1} << 21) / ranks;
    const Tensor whole = make(DType::kFloat32, {ranks * own});
    const Tensor sum = make(DType::kFloat32, {own}), scratch = make(DType::kFloat32, {ranks * own});
    const double wire = static_cast<double>((ranks - 1) * own * 4);
    const double gather = seconds([&] {
      comm.all_gather({.name = "measure", .queue = queue()},
                      {.buffer = whole.raw(), .per_rank = Bytes{own * 4}})
          .wait_on(queue());
    });
    const double reduce = seconds([&] {
      comm.reduce_scatter({.name = "measure", .queue = queue()},
                          {.input = whole.data<float>(),
                           .accumulator = sum.data<float>(),
                           .per_slice = Elems{own},
                           .scratch = scratch.data<float>(),
                           .mode = parallel::ReduceMode::kOrdered})
          .wait_on(queue());
    });
    c.all_gather_gb = slowest(1e-9 * wire / gather);
    c.reduce_scatter_gb = slowest(1e-9 * wire / reduce);
    buffers_.clear();
  }

  Runtime& runtime_;
  const bool gpu_;
  const DType precision_;
  std::vector<Buffer> buffers_;
};

}  // namespace

std::int64_t fair_threads(const parallel::World& world) {
  const auto cpus = static_cast<std::int64_t>(cpus_of_process().size());
  return std::max<std::int64_t>(1, cpus / std::max(1, world.local_size()));
}

CeilingsFile measure_ceilings(Runtime& runtime) {
  CeilingsFile file{.device = runtime.device_name(), .ranks = runtime.world().size()};
  file.memory = runtime.device_memory();
  file.ceilings = Measurement(runtime).run();
  return file;
}

}  // namespace k25::trainer
