#include "parallel/offload/mover.h"

#include <fmt/format.h>

#include <array>
#include <memory>
#include <utility>

namespace k25::parallel {
namespace {

const char* text_of(ChunkState state) {
  constexpr std::array kTexts{"away", "arriving", "here", "leaving"};
  return kTexts.at(static_cast<std::size_t>(state));
}

}  // namespace

class Mover::Token final : public Work::State {
 public:
  bool done() override {
    const std::lock_guard lock(mutex_);
    return look();
  }
  bool wait(Clock::time_point until) override {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [&] { return done_; });
    return look();
  }
  // A stream cannot wait for a disk: its enqueuing does.
  void wait_on(const Queue&) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    look();
  }

  void finish(const std::optional<Error>& error) {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      error_ = error;
    }
    changed_.notify_all();
  }

 private:
  bool look() const {
    if (error_) throw Error(*error_);
    return done_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::optional<Error> error_;
};

Mover::Mover(Tier& tier, Bytes chunk, int count)
    : tier_(tier), chunk_(chunk), states_(static_cast<std::size_t>(count), ChunkState::kAway) {
  K25_CHECK(chunk.n > 0 && chunk.n % tier.granule().n == 0, "a chunk is whole granules");
  K25_CHECK(count * chunk.n <= tier.size().n, "the tier holds all chunks");
}

Mover::~Mover() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return in_flight_ == 0; });
}

ChunkState Mover::state(int chunk) const {
  const std::lock_guard lock(mutex_);
  return states_.at(static_cast<std::size_t>(chunk));
}

Work Mover::arrive(int chunk, std::span<std::byte> to, Callback callback) {
  const Move move{chunk, ChunkState::kArriving, ChunkState::kHere, ChunkState::kAway};
  const Bytes at = begin(move, to.size());
  auto token = std::make_shared<Token>();
  tier_.read(at, to, finish(move, token, std::move(callback)));
  return Work(token);
}

Work Mover::leave(int chunk, std::span<const std::byte> from, Callback callback) {
  const Move move{chunk, ChunkState::kLeaving, ChunkState::kAway, ChunkState::kHere};
  const Bytes at = begin(move, from.size());
  auto token = std::make_shared<Token>();
  tier_.write(at, from, finish(move, token, std::move(callback)));
  return Work(token);
}

void Mover::drop(int chunk) {
  const std::lock_guard lock(mutex_);
  change(chunk, ChunkState::kHere, ChunkState::kAway);
}

// With mutex_ held.
void Mover::change(int chunk, ChunkState from, ChunkState to) {
  ChunkState& state = states_.at(static_cast<std::size_t>(chunk));
  if (state != from) {
    fail(ErrorKind::kInternal,
         fmt::format("chunk {} is {}, expected {}", chunk, text_of(state), text_of(from)));
  }
  state = to;
}

Bytes Mover::begin(const Move& move, std::size_t bytes) {
  K25_CHECK(static_cast<std::int64_t>(bytes) == chunk_.n, "memory of one chunk");
  const std::lock_guard lock(mutex_);
  change(move.chunk, move.fails, move.during);
  ++in_flight_;
  return Bytes{move.chunk * chunk_.n};
}

Tier::Done Mover::finish(const Move& move, std::shared_ptr<Token> token, Callback callback) {
  return [this, move, token = std::move(token),
          callback = std::move(callback)](const std::optional<Error>& error) {
    {
      const std::lock_guard lock(mutex_);
      change(move.chunk, move.during, error ? move.fails : move.ends);
    }
    if (callback) callback(error);
    token->finish(error);
    const std::lock_guard lock(mutex_);
    if (--in_flight_ == 0) idle_.notify_all();
  };
}

}  // namespace k25::parallel
