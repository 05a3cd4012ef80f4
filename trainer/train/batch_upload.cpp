#include "trainer/train/batch_upload.h"

#include <algorithm>
#include <cstring>

#include "kernels/attention/attention.h"
#include "kernels/core/device.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "kernels/rope/rope.h"

namespace k25::trainer {
namespace {

constexpr std::int64_t kArrays = 5;

std::int64_t array_bytes(const RunShape& shape) {
  return align_up(bytes_of(Elems{shape.rows()}, DType::kInt32).n);
}

void check(const RunShape& shape, std::int64_t vocab, const BatchTensors& host) {
  const std::int64_t rows = shape.rows();
  kernels::embedding_check_tokens({.tokens = rows, .vocab = vocab}, host.tokens_N);
  kernels::cross_entropy_check_labels({.rows = rows, .vocab = vocab}, host.labels_N);
  kernels::rope_check_positions({.rows = rows, .max_position = shape.tokens}, host.position_N);
  kernels::attention_check_documents({.batch = shape.batch, .tokens = shape.tokens},
                                     host.doc_begin_BT, host.doc_end_BT);
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

kernels::AttentionImplementation attention_for(const data::Batch& b) {
  const std::int64_t tokens = b.tokens_per_sequence;
  double visible = 0;  // of the square of each sequence
  for (std::int64_t row = 0; row < b.sequences; ++row) {
    const std::int32_t* const ends = b.doc_end.data() + row * tokens;
    for (std::int64_t t = 0; t < tokens;) {
      const std::int64_t end = std::max<std::int64_t>(ends[t], t + 1);
      visible += static_cast<double>(end - t) * static_cast<double>(end - t);
      t = end;
    }
  }
  const double square = static_cast<double>(tokens) * static_cast<double>(tokens);
  return visible < 0.5 * square * static_cast<double>(b.sequences)
             ? kernels::AttentionImplementation::kOwn
             : kernels::AttentionImplementation::kAutomatic;
}

BatchUpload::BatchUpload(const Model& model, std::int64_t depth, Allocator& host, Allocator& state)
    : shape_(model.shape()), vocab_(model.vocab()), depth_(depth) {
  const Footprint bytes = plan(shape_, depth);
  pinned_ = Buffer(bytes.host, host, "losses and batch");
  device_ = Buffer(bytes.device, state, "losses and batch");
}

Footprint BatchUpload::plan(const RunShape& shape, std::int64_t depth) {
  if (shape.device == Device::kCpu) return {};
  const std::int64_t one = kArrays * array_bytes(shape);
  return {.device = {one}, .host = {depth * one}};
}

BatchTensors BatchUpload::upload(const Context& context, const parallel::Mesh& mesh,
                                 const data::Batch& batch) {
  const BatchTensors host = batch_tensors(batch);
  if constexpr (kWithCuda) {
    if (shape_.device == Device::kCuda) {
      check(shape_, vocab_, host);
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
      result = {move(host.tokens_N),     move(host.labels_N),   move(host.position_N),
                move(host.doc_begin_BT), move(host.doc_end_BT), attention_for(batch)};
      copy_bytes(context, pinned, device_.data(), Bytes{at});
      return result;
    }
  }
  return host;
}

}  // namespace k25::trainer
