#include "parallel/zero/finite_log.h"

#include "kernels/core/device.h"
#include "kernels/reduce/reduce.h"

namespace k25::parallel {

FiniteLog::FiniteLog(const Tensor& marks, const Tensor& host_marks)
    : marks_(marks), host_marks_(host_marks) {
  looks_.reserve(static_cast<std::size_t>(marks.numel()));
}

void FiniteLog::look(Context& context, int unit, const Tensor& whole_n) {
  const auto at = static_cast<std::int64_t>(looks_.size());
  kernels::first_not_finite(context, whole_n, marks_.slice(0, at, at + 1));
  looks_.push_back({unit, whole_n.numel()});
}

void FiniteLog::finish_step(Context& context) {
  if (looks_.empty()) return;
  if constexpr (kWithCuda) {
    if (marks_.device() == Device::kCpu) return;
    copy_bytes(context, marks_.raw(), host_marks_.raw(), marks_.bytes());
  }
}

ZeroStore::BadElement FiniteLog::first() const {
  if (looks_.empty()) return {};
  const Tensor& there = marks_.device() == Device::kCpu ? marks_ : host_marks_;
  const auto* marks = there.data<std::int64_t>();
  for (std::size_t i = 0; i < looks_.size(); ++i) {
    if (marks[i] < looks_[i].elements) return {.unit = looks_[i].unit, .element = marks[i]};
  }
  return {};
}

}  // namespace k25::parallel
