#pragma once
// Private to parallel/zero: the moments of the units that are updated on the host, in a file of a
// local disk. The file's chunks are those of the units' shards in order, each with its m and,
// behind them, its v; the update takes them in that order through a window of memory.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/stopwatch.h"
#include "parallel/offload/chunk_window.h"
#include "parallel/offload/file_tier.h"
#include "parallel/zero/zero_memory.h"

namespace k25::parallel {

class NvmeMoments {
 public:
  NvmeMoments(const ZeroShape& shape, const Tensor& window_memory);

  /// One chunk, [begin, end) of the unit's shard; m and v have end - begin elements.
  struct Chunk {
    std::int64_t begin = 0, end = 0;
    Tensor m, v;
  };

  /// f(chunk) may write to every chunk of the unit. Units come in order, all of them, again and
  /// again. Adds to `waited` the seconds for which chunks were not there yet.
  template <class F>
  void update(int unit, double& waited, const F& f) {
    for (std::int64_t c = 0; c < chunks_of(unit); ++c) {
      std::span<std::byte> memory;
      {
        const ScopedTimer timer(waited);
        memory = window_.take();
      }
      f(chunk_in(memory, unit, c));
      window_.release(Change::kWritten);
    }
  }

  std::string text() const;

  /// Elements from `begin` of the unit's shard; no update is under way.
  void read(int unit, std::int64_t begin, std::span<float> m, std::span<float> v);
  void write(int unit, std::int64_t begin, std::span<const float> m, std::span<const float> v);

 private:
  std::int64_t chunks_of(int unit) const;
  Chunk chunk_in(std::span<std::byte> memory, int unit, std::int64_t chunk) const;
  template <class F>
  void visit(int unit, std::int64_t begin, std::int64_t n, Change change, const F& f);

  std::int64_t chunk_elems_;
  std::vector<std::int64_t> first_chunk_;  ///< per unit, and the number of all
  std::vector<std::int64_t> shard_elems_;
  std::vector<std::span<std::byte>> slots_;
  FileTier tier_;
  Mover mover_;
  ChunkWindow window_;
};

}  // namespace k25::parallel
