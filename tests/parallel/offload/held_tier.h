#pragma once
// A tier in memory that moves nothing until the test says so, or everything or all reads at once.

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "parallel/offload/tier.h"

namespace k25::parallel {

class HeldTier final : public Tier {
 public:
  enum class Mode : std::uint8_t { kHeld, kAtOnce, kWritesHeld };
  explicit HeldTier(std::int64_t bytes, Mode mode = Mode::kHeld)
      : content(static_cast<std::size_t>(bytes)), mode_(mode) {}

  Bytes size() const override { return Bytes{std::ssize(content)}; }
  Bytes granule() const override { return Bytes{1}; }
  void read(Bytes offset, std::span<std::byte> to, Done done) override {
    log.push_back("read " + std::to_string(offset.n));
    add({content.data() + offset.n, to.data(), to.size(), std::move(done)});
  }
  void write(Bytes offset, std::span<const std::byte> from, Done done) override {
    log.push_back("write " + std::to_string(offset.n));
    add({from.data(), content.data() + offset.n, from.size(), std::move(done)});
  }

  /// Ends the oldest call, or that many behind it.
  void end_one(const std::optional<Error>& error = {}, std::ptrdiff_t behind = 0) {
    Call call = std::move(calls[static_cast<std::size_t>(behind)]);
    calls.erase(calls.begin() + behind);
    if (!error) std::copy_n(call.from, call.size, call.to);
    call.done(error);
  }
  struct Call {
    const std::byte* from;
    std::byte* to;
    std::size_t size;
    Done done;
  };
  std::vector<std::byte> content;
  std::deque<Call> calls;
  std::vector<std::string> log;  ///< what was asked for
  std::string fails;             ///< the entry of the log that fails, kAtOnce alone

 private:
  void add(Call call) {
    calls.push_back(std::move(call));
    const bool write = log.back().starts_with("write");
    if (mode_ == Mode::kHeld || (mode_ == Mode::kWritesHeld && write)) return;
    const bool broken = log.back() == fails;
    end_one(
        broken ? std::optional(Error(ErrorKind::kCheckpoint, "the disk is broken")) : std::nullopt,
        std::ssize(calls) - 1);
  }

  Mode mode_;
};

}  // namespace k25::parallel
