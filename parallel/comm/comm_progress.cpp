// The communication thread: starting operations and moving their messages.

#include <fmt/format.h>

#include <algorithm>

#include "kernels/core/check.h"
#include "parallel/comm/comm_loop.h"

namespace k25::parallel {
namespace {

// A tag tells calls in flight and their steps apart; MPI guarantees tags up to 32767.
constexpr std::int64_t kSequences = 4096;
constexpr std::int64_t kStepsPerCall = 8;
static_assert(kSequences * kStepsPerCall <= 32768);

}  // namespace

/// Posts one step's messages and counts them.
class CommThread::Impl::StepPoster final : public Poster {
 public:
  StepPoster(Impl& impl, Operation& operation) : impl_(impl), operation_(operation) {}

  void send(int peer, const void* data, std::int64_t bytes) override {
    const Slot slot{&operation_, Slot::Kind::kSend, peer, 0};
    for_each_chunk(bytes, operation_.max_chunk, [&](std::int64_t offset, std::int64_t n) {
      count(operation_.unsent_to, peer);
      const char* const from = static_cast<const char*>(data) + offset;
      impl_.transport_->send(impl_.new_ticket(slot), envelope(peer), from, n);
    });
  }

  void receive(int peer, void* data, std::int64_t bytes) override {
    for_each_chunk(bytes, operation_.max_chunk, [&](std::int64_t offset, std::int64_t n) {
      count(operation_.missing_from, peer);
      const Slot slot{&operation_, Slot::Kind::kReceive, peer, n};
      char* const to = static_cast<char*>(data) + offset;
      impl_.transport_->receive(impl_.new_ticket(slot), envelope(peer), to, n);
    });
  }

  void reduce(int root, const float* input, float* output, std::int64_t elements) override {
    const Slot slot{&operation_, Slot::Kind::kReduce, root, 0};
    const std::int64_t chunk = operation_.max_chunk / static_cast<std::int64_t>(sizeof(float));
    for_each_chunk(elements, chunk, [&](std::int64_t offset, std::int64_t n) {
      count(operation_.unsent_to, root);
      impl_.transport_->reduce(impl_.new_ticket(slot), envelope(root), input + offset,
                               output + offset, n);
    });
  }

 private:
  void count(std::vector<std::int64_t>& per_peer, int peer) {
    const std::lock_guard lock(impl_.active_mutex_);
    ++operation_.outstanding;
    ++per_peer[static_cast<std::size_t>(peer)];
  }

  Envelope envelope(int peer) const {
    const std::int64_t step = static_cast<std::int64_t>(operation_.next_step);
    K25_CHECK(step < kStepsPerCall, "a collective has at most 8 steps");
    const std::int64_t tag = operation_.id.sequence % kSequences * kStepsPerCall + step;
    return {operation_.channel->number, peer, static_cast<int>(tag)};
  }

  Impl& impl_;
  Operation& operation_;
};

Ticket CommThread::Impl::new_ticket(const Slot& slot) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<Ticket>(slots_.size()));
    slots_.emplace_back();
  }
  const Ticket ticket = free_slots_.back();
  free_slots_.pop_back();
  slots_[static_cast<std::size_t>(ticket)] = slot;
  return ticket;
}

void CommThread::Impl::begin(std::unique_ptr<Operation> operation) {
  if (active_.empty()) last_progress_ = now_;
  const auto size = operation->channel->world_ranks.size();
  operation->missing_from.assign(size, 0);
  operation->unsent_to.assign(size, 0);
  log->started(operation->log_key);
  const std::lock_guard lock(active_mutex_);
  active_.push_back(std::move(operation));
}

bool CommThread::Impl::progress() {
  if (active_.empty()) return false;
  completions_.clear();
  transport_->poll(completions_);
  for (const Completion& completion : completions_) settle(completion);
  if (!completions_.empty()) last_progress_ = now_;
  return advance_ready() || !completions_.empty();
}

void CommThread::Impl::settle(const Completion& completion) {
  const Slot slot = slots_[static_cast<std::size_t>(completion.ticket)];
  free_slots_.push_back(completion.ticket);
  Operation& operation = *slot.operation;
  const int world_rank = operation.channel->world_ranks[static_cast<std::size_t>(slot.peer)];
  if (!completion.error.empty()) {
    fail(ErrorKind::kCommunication,
         fmt::format("{}: {} (with {}); comm.check: true finds ranks that call differently",
                     operation.id.describe(), completion.error, peer_text(world_rank)));
  }
  if (slot.kind == Slot::Kind::kReceive && completion.received != slot.bytes) {
    fail(ErrorKind::kCommunication,
         fmt::format("{}: {} sent {} bytes where {} were expected; comm.check: true finds ranks "
                     "that call differently",
                     operation.id.describe(), peer_text(world_rank), completion.received,
                     slot.bytes));
  }
  const std::lock_guard lock(active_mutex_);
  --operation.outstanding;
  auto& per_peer = slot.kind == Slot::Kind::kReceive ? operation.missing_from : operation.unsent_to;
  --per_peer[static_cast<std::size_t>(slot.peer)];
}

bool CommThread::Impl::may_step(const Operation& operation) const {
  if (operation.outstanding > 0) return false;
  if (operation.turn == Turn::kAny) return true;
  const auto first = std::ranges::find_if(
      active_, [&](const auto& other) { return other->channel == operation.channel; });
  return first->get() == &operation;
}

void CommThread::Impl::run_step(Operation& operation) {
  StepPoster poster(*this, operation);
  operation.steps[operation.next_step](poster);
  const std::lock_guard lock(active_mutex_);
  ++operation.next_step;
}

bool CommThread::Impl::advance_ready() {
  bool worked = false;
  for (std::size_t i = 0; i < active_.size();) {
    Operation& operation = *active_[i];
    while (operation.next_step < operation.steps.size() && may_step(operation)) {
      run_step(operation);
      worked = true;
    }
    if (operation.next_step == operation.steps.size() && operation.outstanding == 0) {
      finish_operation(i);
      worked = true;
    } else {
      ++i;
    }
  }
  return worked;
}

void CommThread::Impl::finish_operation(std::size_t index) {
  std::unique_ptr<Operation> operation;
  {
    const std::lock_guard lock(active_mutex_);
    operation = std::move(active_[index]);
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  log->done(operation->log_key);
  operation->channel->in_flight.fetch_sub(1);
  operation->state->complete();
  const std::lock_guard lock(mutex_);
  if (--pending_ == 0) drained_.notify_all();
}

}  // namespace k25::parallel
