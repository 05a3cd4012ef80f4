#include "trainer/train/batch_upload.h"

#include <array>
#include <cstring>

#include "kernels/core/device.h"

namespace k25::trainer {
namespace {

constexpr std::int64_t kArrays = 5;

std::int64_t array_bytes(const RunShape& shape) {
  return align_up(bytes_of(Elems{shape.rows()}, DType::kInt32).n);
}

}  // namespace

BatchTensors batch_tensors(const data::Batch& b) {
  const std::int64_t rows = b.sequences * b.tokens_per_sequence;
  const auto flat = [&](const std::vector<std::int32_t>& v) {
    return ConstTensor(v.data(), DType::kInt32, {rows});
  };
  const auto grid = [&](const std::vector<std::int32_t>& v) {
    return ConstTensor(v.data(), DType::kInt32, {b.sequences, b.tokens_per_sequence});
  };
  return {flat(b.tokens), flat(b.labels), flat(b.position), grid(b.doc_begin), grid(b.doc_end)};
}

BatchUpload::BatchUpload(const RunShape& shape, std::int64_t depth, Allocator& host,
                         Allocator& state)
    : shape_(shape), depth_(depth) {
  if (shape.device == Device::kCpu) return;
  pinned_ = Buffer(Bytes{depth * kArrays * array_bytes(shape)}, host);
  device_ = Buffer(plan(shape), state);
}

Bytes BatchUpload::plan(const RunShape& shape) {
  return Bytes{shape.device == Device::kCpu ? 0 : kArrays * array_bytes(shape)};
}

BatchTensors BatchUpload::upload(const Context& context, const parallel::Mesh& mesh,
                                 const data::Batch& batch) {
  const BatchTensors host = batch_tensors(batch);
  if constexpr (kWithCuda) {
    if (shape_.device == Device::kCuda) {
      if (next_ == depth_) {
        mesh.wait(context);
        next_ = 0;
      }
      const std::int64_t step = array_bytes(shape_);
      char* pinned = static_cast<char*>(pinned_.data()) + next_++ * kArrays * step;
      BatchTensors result;
      std::int64_t at = 0;
      const auto move = [&](const ConstTensor& from) {
        std::memcpy(pinned + at, from.raw(), static_cast<std::size_t>(from.bytes().n));
        const ConstTensor there =
            from.at(static_cast<const char*>(device_.data()) + at, Device::kCuda);
        at += step;
        return there;
      };
      result = {move(host.tokens_N), move(host.labels_N), move(host.position_N),
                move(host.doc_begin_BT), move(host.doc_end_BT)};
      copy_bytes(context, pinned, device_.data(), Bytes{at});
      return result;
    }
  }
  return host;
}

}  // namespace k25::trainer
