#pragma once
// What `k25 bench op` hands to an op, and how it times it.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

#include "kernels/core/host_access.h"
#include "kernels/core/philox.h"
#include "kernels/core/stopwatch.h"
#include "trainer/train/runtime.h"

namespace k25::trainer {

/// Times calls on the runtime's device. A body enqueues the op on the n-th of several equal sets of
/// operands.
class OpTimer {
 public:
  explicit OpTimer(Runtime& runtime) : runtime_(runtime) {}

  /// Median seconds of one call.
  double seconds(const std::function<void(int)>& body) {
    const auto run = [&](int calls) {
      const Stopwatch watch;
      for (int i = 0; i < calls; ++i) body(next_++);
      runtime_.mesh().wait(runtime_.context());
      return watch.seconds();
    };
    run(3);
    const double once = std::max(run(3) / 3, 1e-7);
    const int calls = std::clamp(static_cast<int>(0.05 / once), 1, 2000);
    std::vector<double> rounds;
    for (int r = 0; r < 7; ++r) rounds.push_back(run(calls) / calls);
    std::nth_element(rounds.begin(), rounds.begin() + 3, rounds.end());
    return rounds[3];
  }

 private:
  Runtime& runtime_;
  int next_ = 0;
};

/// Random tensors where the runtime computes, freed together.
class Operands {
 public:
  static constexpr int kSets = 4;

  explicit Operands(Runtime& runtime) : runtime_(runtime) {}

  /// One tensor a set.
  std::vector<Tensor> make(DType dtype, std::initializer_list<std::int64_t> shape) {
    std::vector<Tensor> sets;
    for (int i = 0; i < kSets; ++i) {
      buffers_.emplace_back(Tensor(nullptr, dtype, shape).bytes(), runtime_.allocator());
      sets.push_back(buffers_.back().view(dtype, shape));
      fill_on_host(runtime_.context(), sets.back(), [&](const Tensor& t) { fill(t); });
    }
    return sets;
  }
  /// Integers below `limit`.
  std::vector<Tensor> indices(std::int64_t count, std::int64_t limit) {
    std::vector<Tensor> sets = make(DType::kInt32, {count});
    for (const Tensor& set : sets) {
      fill_on_host(runtime_.context(), set, [&](const Tensor& t) {
        for (std::int64_t i = 0; i < count; ++i) {
          t.data<std::int32_t>()[i] = static_cast<std::int32_t>(
              static_cast<double>(random_.uniform(static_cast<std::uint64_t>(i))) *
              static_cast<double>(limit) * 0.999);
        }
      });
    }
    return sets;
  }
  Workspace workspace(Bytes size) {
    buffers_.emplace_back(size, runtime_.allocator());
    return {buffers_.back().data(), size};
  }

 private:
  /// A run of random numbers, repeated: drawing gigabytes would take longer than the benchmark.
  void fill(const Tensor& t) {
    const std::int64_t drawn = std::min<std::int64_t>(t.numel(), 100003);
    for (std::int64_t i = 0; i < drawn; ++i) {
      const float x = random_.uniform(static_cast<std::uint64_t>(i)) - 0.5F;
      if (t.dtype() == DType::kBFloat16) t.data<BFloat16>()[i] = BFloat16(x);
      if (t.dtype() == DType::kFloat32) t.data<float>()[i] = x;
    }
    auto* bytes = static_cast<char*>(t.raw());
    const std::int64_t piece = drawn * dtype_bytes(t.dtype()), all = t.bytes().n;
    for (std::int64_t at = piece; at < all; at += piece) {
      std::copy_n(bytes, std::min(piece, all - at), bytes + at);
    }
  }

  Runtime& runtime_;
  Philox random_{25, 0, "bench op"};
  std::vector<Buffer> buffers_;
};

}  // namespace k25::trainer
