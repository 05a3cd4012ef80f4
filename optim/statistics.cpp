#include "optim/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/device.h"
#include "kernels/core/set_zero.h"
#include "kernels/reduce/reduce.h"

namespace k25::optim {
namespace {

/// One rank's scalars, in front of its chunk sums.
struct Header {
  std::int64_t nll_fixed = 0;
  std::int64_t label_tokens = 0;
  std::int64_t loss_finite = 1;
  std::int64_t save_and_stop = 0;
  std::int64_t rank = 0;
  std::int64_t bad_unit = -1;  ///< in this rank's own gradients
  std::int64_t bad_element = 0;
  std::int64_t bad_sum_unit = -1;  ///< in the sums of this rank's shard
  std::int64_t bad_sum_element = 0;
  PhaseSeconds phases{};
};
constexpr std::int64_t kHeaderBytes = align_up(sizeof(Header));

std::int64_t row_bytes(std::int64_t chunks) {
  return kHeaderBytes + chunks * dtype_bytes(DType::kFloat64);
}

std::int64_t num_chunks(const parallel::UnitLayout& layout) {
  return layout.owned_elems / kernels::kChunk;
}

std::int64_t num_chunks(const parallel::ZeroStore& store) {
  std::int64_t chunks = 0;
  for (int u = 0; u < store.num_units(); ++u) chunks += num_chunks(store.layout(u));
  return chunks;
}

/// The gradient whose squares this rank sums.
Tensor owned_gradient(parallel::ZeroStore& store, int unit) {
  const parallel::ZeroStore::Range owned = store.owned(unit);
  return store.shard_gradient(unit).slice(0, owned.begin, owned.begin + owned.length);
}

/// Writes the chunk sums of every owned range.
void local_sums(Context& context, parallel::ZeroStore& store, const Tensor& sums_c) {
  std::int64_t at = 0;
  for (int u = 0; u < store.num_units(); ++u) {
    const std::int64_t chunks = num_chunks(store.layout(u));
    const Tensor gradient = owned_gradient(store, u);
    const std::int64_t end = at + gradient.numel() / kernels::kChunk;
    kernels::chunk_square_sums(context, gradient, sums_c.slice(0, at, end));
    at += chunks;
    if (end < at) set_zero(context, sums_c.slice(0, end, at));  // this rank's range ends early
  }
}

std::string element_name(const parallel::UnitLayout& layout, std::int64_t element) {
  for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
    const std::int64_t index = element - layout.offsets[p];
    if (index >= 0 && index < layout.parameters[p].numel()) {
      return fmt::format("{}[{}]", layout.parameters[p].name, index);
    }
  }
  return fmt::format("{}[padding {}]", layout.name, element);
}

std::string bad_parameter(const parallel::ZeroStore& store, const std::vector<Header>& headers) {
  for (const Header& h : headers) {
    if (h.bad_unit >= 0) {
      return fmt::format("{} on rank {}",
                         element_name(store.layout(static_cast<int>(h.bad_unit)), h.bad_element),
                         h.rank);
    }
  }
  for (const Header& h : headers) {
    if (h.bad_sum_unit >= 0) {
      return fmt::format(
          "{} (sum over all ranks, in the shard of rank {})",
          element_name(store.layout(static_cast<int>(h.bad_sum_unit)), h.bad_sum_element), h.rank);
    }
  }
  return {};
}

void fold_headers(const std::vector<Header>& headers, StepStats& stats) {
  stats.loss_max = -std::numeric_limits<double>::infinity();
  for (const Header& h : headers) {
    if (__builtin_add_overflow(stats.nll_fixed, h.nll_fixed, &stats.nll_fixed)) {
      stats.nll_fixed = std::numeric_limits<std::int64_t>::max();
      stats.loss_finite = false;
    }
    stats.label_tokens += h.label_tokens;
    stats.loss_finite = stats.loss_finite && h.loss_finite != 0;
    stats.save_and_stop = stats.save_and_stop || h.save_and_stop != 0;
    if (h.label_tokens > 0) {
      stats.loss_max = std::max(stats.loss_max, mean_nll(h.nll_fixed, h.label_tokens));
    }
  }
  // The mean of means is at most their maximum; rounding of large sums may not say otherwise.
  stats.loss_max = stats.label_tokens == 0
                       ? mean_nll(0, 0)
                       : std::max(stats.loss_max, mean_nll(stats.nll_fixed, stats.label_tokens));
}

}  // namespace

void add_nll(LocalStats& stats, double nll) {
  constexpr double kLimit = 0x1p62;
  const double fixed = std::nearbyint(std::ldexp(nll, 24));
  std::int64_t sum = 0;
  if (!(std::abs(fixed) < kLimit) ||
      __builtin_add_overflow(stats.nll_fixed, static_cast<std::int64_t>(fixed), &sum)) {
    stats.loss_finite = false;
    return;
  }
  stats.nll_fixed = sum;
}

Footprint Statistics::plan(const std::vector<parallel::UnitSpec>& units,
                           const parallel::MeshShape& mesh, Device device) {
  std::int64_t chunks = 0;
  for (const parallel::UnitSpec& unit : units) {
    chunks += num_chunks(parallel::make_layout(unit, mesh.shard, DType::kFloat32));
  }
  const Bytes rows{mesh.replicate * mesh.shard * row_bytes(chunks)};
  if (device == Device::kCpu) return {.device = rows};
  return {.device = bytes_of(Elems{chunks}, DType::kFloat64), .host = rows};
}

Statistics::Statistics(parallel::Mesh& mesh, parallel::ZeroStore& store, Allocator& host,
                       Allocator& state)
    : mesh_(mesh),
      store_(store),
      rows_(Bytes{mesh.data_ranks() * row_bytes(num_chunks(store))}, host, "statistics") {
  if (state.device() == Device::kCuda) {
    device_sums_ = Buffer(bytes_of(Elems{num_chunks(store)}, DType::kFloat64), state, "statistics");
  }
}

Tensor Statistics::host_sums(int data_rank) const {
  const std::int64_t chunks = num_chunks(store_);
  return rows_.view(DType::kFloat64, {chunks}, Bytes{data_rank * row_bytes(chunks) + kHeaderBytes});
}

void Statistics::begin(Context& context) {
  const Tensor mine = host_sums(mesh_.data_rank());
  if constexpr (kWithCuda) {
    if (device_sums_.data() != nullptr) {
      const Tensor sums = device_sums_.view(DType::kFloat64, {mine.numel()});
      local_sums(context, store_, sums);
      return copy_tensor(context, sums, mine);
    }
  }
  local_sums(context, store_, mine);
}

// A square of fp32 is finite in fp64, so a sum of squares is finite when all its elements are.
Statistics::BadElement Statistics::find_bad_sum(Context& context) {
  const Tensor sums = host_sums(mesh_.data_rank());
  BadElement replicated;
  std::int64_t end = sums.numel();
  for (int u = store_.num_units() - 1; u >= 0; --u) {
    const std::int64_t begin = end - num_chunks(store_.layout(u));
    const bool finite = std::isfinite(kernels::add_in_order(sums.slice(0, begin, end)));
    end = begin;
    if (finite) continue;
    const Tensor gradient = owned_gradient(store_, u);
    const std::int64_t element = first_not_finite(context, gradient);
    const BadElement found{.unit = u,
                           .element = store_.shard_begin(u) + store_.owned(u).begin + element};
    if (store_.layout(u).placement != parallel::Placement::kReplicated) return found;
    replicated = found;
  }
  return replicated;
}

std::int64_t Statistics::first_not_finite(Context& context, const Tensor& gradient) {
  std::int64_t element = 0;
  if constexpr (kWithCuda) {
    if (gradient.device() == Device::kCuda) {  // rare, so it may wait
      const Tensor found = device_sums_.view(DType::kInt64, {1});
      kernels::first_not_finite(context, gradient, found);
      copy_bytes(context, found.raw(), &element, Bytes{sizeof element});
      mesh_.wait(context);
      return element;
    }
  }
  kernels::first_not_finite(context, gradient, Tensor(&element, DType::kInt64, {1}));
  return element;
}

StepStats Statistics::gather(Context& context, const LocalStats& local) {
  const std::int64_t row = row_bytes(num_chunks(store_));
  auto* rows = static_cast<char*>(rows_.data());

  BadElement bad = store_.first_bad_gradient();
  BadElement bad_sum = find_bad_sum(context);
  if (store_.sums_are_own()) std::swap(bad, bad_sum);
  const Header mine{.nll_fixed = local.nll_fixed,
                    .label_tokens = local.label_tokens,
                    .loss_finite = local.loss_finite ? 1 : 0,
                    .save_and_stop = local.save_and_stop ? 1 : 0,
                    .rank = mesh_.world().rank(),
                    .bad_unit = bad.unit,
                    .bad_element = bad.element,
                    .bad_sum_unit = bad_sum.unit,
                    .bad_sum_element = bad_sum.element,
                    .phases = local.phases};
  std::memcpy(rows + mesh_.data_rank() * row, &mine, sizeof(mine));
  mesh_.data_comm()
      .all_gather({.name = "step statistics"}, {.buffer = rows, .per_rank = Bytes{row}})
      .wait();

  std::vector<Header> headers(static_cast<std::size_t>(mesh_.data_ranks()));
  rank_phases_.clear();
  for (std::size_t r = 0; r < headers.size(); ++r) {
    std::memcpy(&headers[r], rows + static_cast<std::int64_t>(r) * row, sizeof(Header));
    rank_phases_.push_back({static_cast<int>(headers[r].rank), headers[r].phases});
  }
  StepStats stats;
  fold_headers(headers, stats);
  // Data ranks 0 .. shards - 1 are one replica: every chunk once, in index order.
  std::int64_t at = 0;
  for (int u = 0; u < store_.num_units(); ++u) {
    const std::int64_t n = num_chunks(store_.layout(u));
    for (int shard = 0; shard < mesh_.shape().shard; ++shard) {
      const double* sums = host_sums(shard).data<double>() + at;
      for (std::int64_t c = 0; c < n; ++c) stats.gradient_square_sum += sums[c];
    }
    at += n;
  }
  stats.bad_parameter = bad_parameter(store_, headers);
  stats.gradient_finite = std::isfinite(stats.gradient_square_sum) && stats.bad_parameter.empty();
  return stats;
}

}  // namespace k25::optim
