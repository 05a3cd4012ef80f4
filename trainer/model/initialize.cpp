#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "kernels/core/host_access.h"
#include "kernels/core/philox.h"
#include "kernels/core/thread_pool.h"
#include "kernels/core/update_math.h"
#include "trainer/model/model.h"

namespace k25::trainer {
namespace {

// Of a time step that is log-uniform in (0.001, 0.1), u in (0, 1). Rounded from fp64.
float inverse_softplus(double u) {
  const double step = 1e-3 * std::exp(u * std::log(100.0));
  return static_cast<float>(step + std::log(-std::expm1(-step)));
}

float initial_value(const parallel::Init& init, const Philox& stream, std::int64_t index) {
  switch (init.kind) {
    case parallel::InitKind::kOnes:
      return 1.0f;
    case parallel::InitKind::kZeros:
      return 0.0f;
    case parallel::InitKind::kNormal:
      return static_cast<float>(init.std) *
             exact_normal(stream.uniform(static_cast<std::uint64_t>(index)));
    case parallel::InitKind::kLogDecay:
      return exact_log(1.0f + 15.0f * stream.uniform(static_cast<std::uint64_t>(index)));
    case parallel::InitKind::kTimeStep:
      return inverse_softplus(stream.uniform(static_cast<std::uint64_t>(index)));
  }
  return 0.0f;
}

// The part of one slice that lies in flat elements [begin, begin + master.numel()) of its unit.
void initialize_slice(const parallel::Slice& slice, std::int64_t slice_begin,
                      std::int64_t slice_elems, std::int64_t begin, const Tensor& master,
                      std::uint64_t seed, ThreadPool* threads) {
  const Philox stream(seed, 0, slice.name);
  float* values = master.data<float>();
  const std::int64_t first = std::max(slice_begin, begin);
  const std::int64_t last = std::min(slice_begin + slice_elems, begin + master.numel());
  const auto body = [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) {
      values[first + i - begin] = initial_value(slice.init, stream, first + i - slice_begin);
    }
  };
  constexpr std::int64_t kGrain = std::int64_t{1} << 16;
  if (last > first) parallel_for(threads, last - first, kGrain, std::ref(body));
}

// One rank's part of a unit.
void initialize_shard(const parallel::UnitLayout& layout, std::int64_t begin, const Tensor& master,
                      std::uint64_t seed, ThreadPool* threads) {
  for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
    const parallel::ParameterSpec& parameter = layout.parameters[p];
    const std::int64_t row = parameter.shape.empty() || parameter.shape[0] == 0
                                 ? 0
                                 : parameter.numel() / parameter.shape[0];
    for (const parallel::Slice& slice : parameter.slices) {
      initialize_slice(slice, layout.offsets[p] + slice.row_begin * row,
                       (slice.row_end - slice.row_begin) * row, begin, master, seed, threads);
    }
  }
}

}  // namespace

void initialize_parameters(parallel::ZeroStore& store, std::uint64_t seed) {
  // Each value is a function of its index alone, so more threads than run.cpu_threads do no harm.
  constexpr int kMostThreads = 16;
  ThreadPool threads(std::min(available_cores(), kMostThreads));
  for (int u = 0; u < store.num_units(); ++u) {
    const parallel::UnitLayout& layout = store.layout(u);
    fill_on_host(store.context(), store.master(u), [&](const Tensor& master) {
      // The gaps between parameters stay zero.
      std::memset(master.raw(), 0, static_cast<std::size_t>(master.bytes().n));
      initialize_shard(layout, store.shard_begin(u), master, seed, &threads);
    });
  }
  store.invalidate();
}

}  // namespace k25::trainer
