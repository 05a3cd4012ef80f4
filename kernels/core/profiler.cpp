#include "kernels/core/profiler.h"

#include "kernels/core/check.h"
#include "kernels/core/profiler_device.h"

namespace k25 {
namespace {

// Events are read when a run's profile ends, or when so many wait that memory would matter.
constexpr std::size_t kMostPairs = std::size_t{1} << 15;

}  // namespace

Profiler::Profiler(cudaStream_t stream) {
  if constexpr (kWithCuda) {
    if (stream != nullptr) device_ = make_profiler_device(stream);
  }
}

Profiler::~Profiler() = default;

void Profiler::start() {
  if (device_ != nullptr) device_->start_capture();
}

void Profiler::stop() {
  K25_CHECK(open_.empty(), "a profile ends inside the range " + rows_[open_.back().row].range);
  if (device_ == nullptr) return;
  fold();
  device_->stop_capture();
}

void Profiler::begin(const char* name, std::int64_t index) {
  std::string own = name;
  if (index >= 0) own.append(" ").append(std::to_string(index));
  std::string path = open_.empty() ? "" : rows_[open_.back().row].range;
  if (!path.empty()) path.append("/");
  path.append(own);
  const auto [at, added] = index_.try_emplace(path, rows_.size());
  if (added) rows_.push_back({.range = path});
  Open range{.row = at->second};
  if (device_ != nullptr) {
    device_->push(own.c_str());
    range.begin_event = device_->mark();
  }
  range.watch = Stopwatch();
  open_.push_back(range);
}

void Profiler::end() {
  const Open range = open_.back();
  open_.pop_back();
  Row& row = rows_[range.row];
  row.host_seconds += range.watch.seconds();
  ++row.count;
  if (device_ == nullptr) return;
  pairs_.push_back({range.row, range.begin_event, device_->mark()});
  device_->pop();
  if (open_.empty() && pairs_.size() > kMostPairs) fold();
}

void Profiler::fold() {
  device_->wait();
  for (const Pair& pair : pairs_) {
    double& sum =
        rows_[pair.row].device_seconds.emplace(rows_[pair.row].device_seconds.value_or(0.0));
    sum += device_->seconds_between(pair.begin_event, pair.end_event);
  }
  pairs_.clear();
  device_->forget();
}

}  // namespace k25
