#include "parallel/zero/nvme_moments.h"

#include "parallel/zero/zero_queue.h"

namespace k25::parallel {
namespace {

// The tensor has room to begin at a granule.
std::vector<std::span<std::byte>> cut(const Tensor& memory, std::int64_t chunk_bytes) {
  const std::int64_t granule = FileTier::kGranule.n;
  auto* const raw = static_cast<std::byte*>(memory.raw());
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(raw));
  std::byte* const first = raw + (align_up(address, granule) - address);
  std::vector<std::span<std::byte>> slots;
  for (std::int64_t s = 0; s < kNvmeSlots; ++s) {
    slots.emplace_back(first + s * chunk_bytes, static_cast<std::size_t>(chunk_bytes));
  }
  return slots;
}

Bytes chunk_bytes(const ZeroShape& shape) {
  return bytes_of(Elems{2 * shape.nvme_chunk()}, DType::kFloat32);
}

}  // namespace

NvmeMoments::NvmeMoments(const ZeroShape& shape, const Tensor& window_memory)
    : chunk_elems_(shape.nvme_chunk()),
      first_chunk_(shape.nvme_chunks()),
      slots_(cut(window_memory, chunk_bytes(shape).n)),
      tier_({.folder = shape.offload.nvme, .size = shape.nvme_bytes()}),
      mover_(tier_, chunk_bytes(shape), static_cast<int>(first_chunk_.back())),
      window_(mover_, slots_) {
  for (const UnitLayout& unit : shape.layouts) shard_elems_.push_back(unit.shard_elems);
}

std::string NvmeMoments::text() const {
  return std::string(tier_.engine()) +
         (tier_.is_direct() ? ", past the page cache" : ", through the page cache");
}

std::int64_t NvmeMoments::chunks_of(int unit) const {
  return at(first_chunk_, unit + 1) - at(first_chunk_, unit);
}

NvmeMoments::Chunk NvmeMoments::chunk_in(std::span<std::byte> memory, int unit,
                                         std::int64_t chunk) const {
  const std::int64_t begin = chunk * chunk_elems_;
  const std::int64_t end = std::min(begin + chunk_elems_, at(shard_elems_, unit));
  auto* const m = reinterpret_cast<float*>(memory.data());
  const Tensor whole(m, DType::kFloat32, {2 * chunk_elems_}, Device::kCpu);
  return {.begin = begin,
          .end = end,
          .m = whole.slice(0, 0, end - begin),
          .v = whole.slice(0, chunk_elems_, chunk_elems_ + end - begin)};
}

// f(chunk, [first, last) of the shard that it shares with the range)
template <class F>
void NvmeMoments::visit(int unit, std::int64_t begin, std::int64_t n, Change change, const F& f) {
  window_.drain();
  const std::span<std::byte> memory = slots_.front();
  for (std::int64_t c = begin / chunk_elems_; c * chunk_elems_ < begin + n; ++c) {
    const auto index = static_cast<int>(at(first_chunk_, unit) + c);
    mover_.arrive(index, memory).wait();
    const Chunk chunk = chunk_in(memory, unit, c);
    f(chunk, std::max(begin, chunk.begin), std::min(begin + n, chunk.end));
    if (change == Change::kNone) {
      mover_.drop(index);
    } else {
      mover_.leave(index, memory).wait();
    }
  }
}

void NvmeMoments::read(int unit, std::int64_t begin, std::span<float> m, std::span<float> v) {
  const auto copy = [&](const Tensor& from, const Chunk& chunk, std::int64_t first,
                        std::int64_t last, std::span<float> to) {
    std::copy_n(from.data<float>() + (first - chunk.begin), last - first,
                to.data() + (first - begin));
  };
  visit(unit, begin, std::ssize(m), Change::kNone,
        [&](const Chunk& chunk, std::int64_t first, std::int64_t last) {
          copy(chunk.m, chunk, first, last, m);
          copy(chunk.v, chunk, first, last, v);
        });
}

void NvmeMoments::write(int unit, std::int64_t begin, std::span<const float> m,
                        std::span<const float> v) {
  const auto copy = [&](std::span<const float> from, std::int64_t first, std::int64_t last,
                        const Tensor& to, const Chunk& chunk) {
    std::copy_n(from.data() + (first - begin), last - first,
                to.data<float>() + (first - chunk.begin));
  };
  visit(unit, begin, std::ssize(m), Change::kWritten,
        [&](const Chunk& chunk, std::int64_t first, std::int64_t last) {
          copy(m, first, last, chunk.m, chunk);
          copy(v, first, last, chunk.v, chunk);
        });
}

}  // namespace k25::parallel
