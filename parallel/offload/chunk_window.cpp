#include "parallel/offload/chunk_window.h"

#include <algorithm>
#include <utility>

namespace k25::parallel {

ChunkWindow::ChunkWindow(Mover& mover, std::vector<std::span<std::byte>> slots) : mover_(mover) {
  K25_CHECK(slots.size() >= 2, "one slot to work on and one that arrives");
  const auto used = std::min(slots.size(), static_cast<std::size_t>(mover.count()));
  for (std::size_t i = 0; i < used; ++i) slots_.push_back({.memory = slots[i]});
}

ChunkWindow::~ChunkWindow() {
  std::unique_lock lock(mutex_);
  draining_ = true;
  changed_.wait(lock, [&] { return in_flight_ == 0; });
}

std::span<std::byte> ChunkWindow::take() {
  K25_CHECK(!taken_ && !slots_.empty(), "one chunk at a time, and there is one");
  fill();
  std::unique_lock lock(mutex_);
  Slot& slot = slot_at(next_);
  changed_.wait(lock, [&] { return failure_ || (slot.position == next_ && slot.here); });
  require_well();
  taken_ = true;
  return slot.memory;
}

void ChunkWindow::release(Change change) {
  K25_CHECK(taken_, "a chunk is taken");
  taken_ = false;
  const std::int64_t position = next_++;
  const std::int64_t following = position + std::ssize(slots_);
  {
    const std::lock_guard lock(mutex_);
    slot_at(position).here = false;
    if (change == Change::kWritten) ++in_flight_;
  }
  if (change == Change::kNone) {
    mover_.drop(chunk_at(position));
    want(following);
    return start_wanted();
  }
  mover_.leave(chunk_at(position), slot_at(position).memory,
               [this, following](const std::optional<Error>& error) {
                 {
                   const std::lock_guard lock(mutex_);
                   if (error && !failure_) failure_ = error;
                 }
                 want(following);
                 start_wanted();
                 const std::lock_guard lock(mutex_);
                 --in_flight_;
                 changed_.notify_all();
               });
}

void ChunkWindow::drain() {
  K25_CHECK(!taken_, "no chunk is taken");
  {
    std::unique_lock lock(mutex_);
    draining_ = true;
    changed_.wait(lock, [&] { return in_flight_ == 0; });
    draining_ = false;
    require_well();
  }
  for (Slot& slot : slots_) {
    if (slot.here) mover_.drop(chunk_at(slot.position));
    slot.here = false;
    slot.position = slot.wanted = -1;
  }
  next_ = 0;
  filled_ = false;
}

int ChunkWindow::chunk_at(std::int64_t position) const {
  return static_cast<int>(position % mover_.count());
}

ChunkWindow::Slot& ChunkWindow::slot_at(std::int64_t position) {
  return slots_[static_cast<std::size_t>(position % std::ssize(slots_))];
}

void ChunkWindow::fill() {
  if (std::exchange(filled_, true)) return;
  for (std::int64_t i = 0; i < std::ssize(slots_); ++i) want(i);
  start_wanted();
}

void ChunkWindow::want(std::int64_t position) {
  const std::lock_guard lock(mutex_);
  slot_at(position).wanted = position;
}

// Writes end in any order: with fewer than twice as many chunks as slots, the chunk that a slot
// wants may still be leaving another one, whose callback then comes here again. Also from the
// mover's callbacks.
void ChunkWindow::start_wanted() {
  while (Slot* const slot = next_to_start()) {
    mover_.arrive(chunk_at(slot->position), slot->memory,
                  [this, slot](const std::optional<Error>& error) {
                    const std::lock_guard lock(mutex_);
                    if (error && !failure_) failure_ = error;
                    slot->here = !error;
                    --in_flight_;
                    changed_.notify_all();
                  });
  }
}

/// The slot with the lowest position that can come now, which is in flight then; or null.
ChunkWindow::Slot* ChunkWindow::next_to_start() {
  const std::lock_guard lock(mutex_);
  if (failure_ || draining_) return nullptr;
  Slot* first = nullptr;
  for (Slot& slot : slots_) {
    if (slot.wanted < 0 || (first != nullptr && first->wanted < slot.wanted)) continue;
    if (mover_.state(chunk_at(slot.wanted)) == ChunkState::kAway) first = &slot;
  }
  if (first == nullptr) return nullptr;
  first->position = std::exchange(first->wanted, -1);
  first->here = false;
  ++in_flight_;
  return first;
}

// With mutex_ held.
void ChunkWindow::require_well() const {
  if (failure_) throw Error(*failure_);
}

}  // namespace k25::parallel
