#include <fmt/format.h>
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/offload/file_engine.h"

namespace k25::parallel {
namespace {

// The ring takes 32-bit sizes; a multiple of every granule.
constexpr std::int64_t kMostAtOnce = std::int64_t{1} << 30;

// mutex_ guards the submission side and the table of what the kernel has; one thread alone reads
// completions and finds their requests in that table.
class UringEngine final : public FileEngine {
 public:
  UringEngine(io_uring ring, int fd, std::string file, int depth)
      : ring_(ring), fd_(fd), file_(std::move(file)), slots_(static_cast<std::size_t>(depth)) {
    for (std::size_t i = 0; i < slots_.size(); ++i) free_.push_back(i);
    thread_ = std::thread([this] { run(); });
  }
  ~UringEngine() override {
    {
      const std::lock_guard lock(mutex_);
      send(kStop, [](io_uring_sqe* entry) { io_uring_prep_nop(entry); });
    }
    thread_.join();
    io_uring_queue_exit(&ring_);
  }
  UringEngine(const UringEngine&) = delete;
  UringEngine& operator=(const UringEngine&) = delete;

  std::string_view name() const override { return "io_uring"; }

  void submit(FileRequest request) override {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(request));
    start_waiting();
  }

 private:
  static constexpr std::size_t kStop = static_cast<std::size_t>(-1);

  // The rest of these are called with mutex_ held.
  void start_waiting() {
    while (!waiting_.empty() && !free_.empty()) {
      const std::size_t slot = free_.back();
      free_.pop_back();
      slots_[slot] = std::move(waiting_.front());
      waiting_.pop_front();
      send_request(slot);
    }
  }

  void send_request(std::size_t slot) {
    const FileRequest& request = slots_[slot];
    const auto size = static_cast<unsigned>(std::min(request.left, kMostAtOnce));
    const auto offset = static_cast<std::uint64_t>(request.offset);
    send(slot, [&](io_uring_sqe* entry) {
      if (request.kind == FileRequest::Kind::kRead) {
        io_uring_prep_read(entry, fd_, request.memory, size, offset);
      } else {
        io_uring_prep_write(entry, fd_, request.memory, size, offset);
      }
    });
  }

  // One entry at a time: the ring never holds more than this one, so there always is room.
  template <class Prepare>
  void send(std::size_t id, const Prepare& prepare) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    prepare(entry);
    entry->user_data = id;
    while (true) {
      const int sent = io_uring_submit(&ring_);
      if (sent > 0) return;
      if (sent == -EINTR || sent == -EAGAIN || sent == -EBUSY || sent == 0) {
        std::this_thread::yield();
        continue;
      }
      fail_ring("takes no request", sent);
    }
  }

  // A ring that breaks its contract answers none of its requests any more.
  [[noreturn]] void fail_ring(const char* what, int reason) const {
    fail(ErrorKind::kInternal,
         fmt::format("{}: io_uring {}: {}", file_, what, std::strerror(-reason)));
  }

  // The thread.
  void run() {
    while (true) {
      io_uring_cqe* completion = nullptr;
      if (const int waited = io_uring_wait_cqe(&ring_, &completion); waited != 0) {
        if (waited == -EINTR) continue;
        fail_ring("gives no answer", waited);
      }
      const std::size_t slot = completion->user_data;
      const int result = completion->res;
      io_uring_cqe_seen(&ring_, completion);
      if (slot == kStop) return;
      completed(slot, result);
    }
  }

  void completed(std::size_t slot, int result) {
    FileRequest request;
    std::optional<Error> error;
    {
      const std::lock_guard lock(mutex_);
      if (!advance(slots_[slot], result, file_, error)) return send_request(slot);
      request = std::move(slots_[slot]);
      free_.push_back(slot);
      start_waiting();
    }
    request.done(error);
  }

  io_uring ring_;
  int fd_;
  std::string file_;
  std::mutex mutex_;
  std::deque<FileRequest> waiting_;
  std::vector<FileRequest> slots_;
  std::vector<std::size_t> free_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<FileEngine> make_uring_engine(int fd, const std::string& file, int depth) {
  io_uring ring{};
  if (io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0) != 0) return nullptr;
  return std::make_unique<UringEngine>(ring, fd, file, depth);
}

}  // namespace k25::parallel
