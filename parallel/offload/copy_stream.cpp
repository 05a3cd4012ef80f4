#include "parallel/offload/copy_stream.h"

#include <cstring>

namespace k25::parallel {

CopyStream::CopyStream(CudaLink* link) : link_(link) {
  if constexpr (kWithCuda) {
    if (link != nullptr) stream_ = std::make_unique<CudaStream>();
  }
}

CopyStream::~CopyStream() = default;

void CopyStream::use_on_this_thread() const {
  if constexpr (kWithCuda) {
    if (stream_ != nullptr) stream_->use_on_this_thread();
  }
}

Queue CopyStream::queue() const {
  return stream_ == nullptr ? Queue::host() : Queue::on_stream(stream_->get());
}

void CopyStream::follow(const Queue& queue) {
  if constexpr (kWithCuda) {
    if (stream_ != nullptr) mark_stream(*link_, queue.stream()).wait_on(this->queue());
  }
}

void CopyStream::copy(const void* from, void* to, Bytes size) {
  if (size.n == 0) return;
  if constexpr (kWithCuda) {
    if (stream_ != nullptr) {
      const Context on_stream{.stream = stream_->get()};
      return copy_bytes(on_stream, from, to, size);
    }
  }
  std::memcpy(to, from, static_cast<std::size_t>(size.n));
}

Work CopyStream::mark() {
  if constexpr (kWithCuda) {
    if (stream_ != nullptr) return mark_stream(*link_, stream_->get());
  }
  return {};
}

}  // namespace k25::parallel
