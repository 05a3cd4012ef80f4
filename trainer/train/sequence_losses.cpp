#include "trainer/train/sequence_losses.h"

#include "kernels/core/device.h"
#include "kernels/reduce/reduce.h"

namespace k25::trainer {

SequenceLosses::SequenceLosses(const RunShape& shape, std::int64_t micro_batches, Allocator& host,
                               Allocator& state)
    : shape_(shape) {
  const Footprint bytes = plan(shape, micro_batches);
  sums_ = Buffer(bytes.device, state, "losses and batch");
  host_ = Buffer(bytes.host, host, "losses and batch");
}

Footprint SequenceLosses::plan(const RunShape& shape, std::int64_t micro_batches) {
  const Bytes sums = bytes_of(Elems{micro_batches * shape.batch}, DType::kFloat64);
  return {.device = sums, .host = shape.device == Device::kCpu ? Bytes{} : sums};
}

void SequenceLosses::add(Context& context, const Tensor& nll_N) {
  const Tensor sums =
      sums_.view(DType::kFloat64, {shape_.batch}, bytes_of(Elems{used_}, DType::kFloat64));
  kernels::row_sums(context, nll_N.view({shape_.batch, shape_.tokens}), sums);
  used_ += shape_.batch;
}

void SequenceLosses::fetch(const Context& context) {
  if constexpr (kWithCuda) {
    if (host_.data() == nullptr) return;
    copy_bytes(context, sums_.data(), host_.data(), bytes_of(Elems{used_}, DType::kFloat64));
  }
}

std::span<const double> SequenceLosses::values() const {
  const void* data = host_.data() != nullptr ? host_.data() : sums_.data();
  return {static_cast<const double*>(data), static_cast<std::size_t>(used_)};
}

}  // namespace k25::trainer
