#pragma once
// Ranks as threads of one process: a transport over a shared mailbox, with faults on demand. It
// lets the watchdog and the checks be tested without MPI, also under the thread sanitizer.

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "parallel/comm/transport.h"

namespace k25::parallel {

/// What the ranks of one test share.
class LoopbackHub {
 public:
  explicit LoopbackHub(int size) : size_(size), failures_(static_cast<std::size_t>(size)) {}

  int size() const { return size_; }

 private:
  friend class LoopbackTransport;
  using Address = std::tuple<int, int, int, int>;  // channel, from, to (world ranks), tag

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Address, std::deque<std::vector<char>>> mail_;
  std::vector<std::deque<int>> failures_;                                   // for each rank
  std::map<int, std::vector<std::pair<std::pair<int, int>, int>>> splits_;  // (color, key), rank
};

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<LoopbackHub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank) {
    std::vector<int> world;
    for (int r = 0; r < hub_->size(); ++r) world.push_back(r);
    members_.push_back(world);
  }

  std::vector<Peer> start(std::chrono::milliseconds) override {
    std::vector<Peer> peers;
    for (int r = 0; r < hub_->size(); ++r) peers.push_back({"node" + std::to_string(r), 100 + r});
    return peers;
  }
  int rank() const override { return rank_; }

  void send(Ticket ticket, const Envelope& to, const void* data, std::int64_t bytes) override {
    const char* const from = static_cast<const char*>(data);
    const std::lock_guard lock(hub_->mutex_);
    hub_->mail_[{to.channel, rank_, world_rank(to), to.tag}].emplace_back(from, from + bytes);
    finished_.push_back({ticket, 0, {}});
  }
  void receive(Ticket ticket, const Envelope& from, void* data, std::int64_t bytes) override {
    waiting_.push_back({ticket, {from.channel, world_rank(from), rank_, from.tag}, data, bytes});
  }
  void reduce(Ticket, const Envelope&, const float*, float*, std::int64_t) override {
    fail(ErrorKind::kInternal, "the loopback transport has no library reduction");
  }

  void poll(std::vector<Completion>& done) override {
    const std::lock_guard lock(hub_->mutex_);
    for (std::size_t i = 0; i < waiting_.size();) {
      const Receive& receive = waiting_[i];
      auto& mail = hub_->mail_[receive.address];
      if (mail.empty()) {
        ++i;
        continue;
      }
      const std::vector<char> message = std::move(mail.front());
      mail.pop_front();
      const auto size = static_cast<std::int64_t>(message.size());
      const Completion completion{receive.ticket, size, {}};
      if (size > 0 && size == receive.bytes) {
        std::memcpy(receive.data, message.data(), message.size());
      }
      finished_.push_back(completion);
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    std::move(finished_.begin(), finished_.end(), std::back_inserter(done));
    finished_.clear();
  }

  int create_channel(int color, int key) override {
    const int number = static_cast<int>(members_.size());
    std::unique_lock lock(hub_->mutex_);
    auto& votes = hub_->splits_[number];
    votes.push_back({{color, key}, rank_});
    hub_->changed_.notify_all();
    hub_->changed_.wait(lock, [&] { return votes.size() == members_[0].size(); });
    auto sorted = votes;
    std::sort(sorted.begin(), sorted.end());
    std::vector<int> members;
    for (const auto& [vote, rank] : sorted) {
      if (vote.first == color) members.push_back(rank);
    }
    members_.push_back(members);
    return number;
  }

  std::optional<int> failed_peer() override {
    const std::lock_guard lock(hub_->mutex_);
    auto& failures = hub_->failures_[static_cast<std::size_t>(rank_)];
    if (failures.empty()) return std::nullopt;
    const int peer = failures.front();
    failures.pop_front();
    return peer;
  }
  void announce_failure(std::chrono::milliseconds) override {
    const std::lock_guard lock(hub_->mutex_);
    for (int r = 0; r < hub_->size(); ++r) {
      if (r != rank_) hub_->failures_[static_cast<std::size_t>(r)].push_back(rank_);
    }
  }
  void finalize() override {}
  [[noreturn]] void abort(int exit_code) override { std::_Exit(exit_code); }

 private:
  struct Receive {
    Ticket ticket;
    LoopbackHub::Address address;
    void* data;
    std::int64_t bytes;
  };

  int world_rank(const Envelope& envelope) const {
    return members_[static_cast<std::size_t>(envelope.channel)]
                   [static_cast<std::size_t>(envelope.peer)];
  }

  std::shared_ptr<LoopbackHub> hub_;
  int rank_;
  std::vector<std::vector<int>> members_;  // world ranks of each channel
  std::vector<Receive> waiting_;
  std::vector<Completion> finished_;
};

}  // namespace k25::parallel
