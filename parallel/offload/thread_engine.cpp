#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/offload/file_engine.h"

namespace k25::parallel {

namespace {

class ThreadEngine final : public FileEngine {
 public:
  ThreadEngine(int fd, std::string file, int threads) : fd_(fd), file_(std::move(file)) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { run(stop); });
    }
  }

  std::string_view name() const override { return "threads"; }

  void submit(FileRequest request) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(request));
    }
    changed_.notify_one();
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return !waiting_.empty(); })) {
      FileRequest request = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      serve(request);
      lock.lock();
    }
  }

  void serve(FileRequest& request) const {
    std::optional<Error> error;
    while (true) {
      const auto size = static_cast<std::size_t>(request.left);
      const ssize_t moved = request.kind == FileRequest::Kind::kRead
                                ? ::pread(fd_, request.memory, size, request.offset)
                                : ::pwrite(fd_, request.memory, size, request.offset);
      if (advance(request, moved < 0 ? -errno : moved, file_, error)) break;
    }
    request.done(error);
  }

  int fd_;
  std::string file_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<FileRequest> waiting_;
  std::vector<std::jthread> threads_;  // ends first
};

}  // namespace

std::unique_ptr<FileEngine> make_thread_engine(int fd, const std::string& file, int threads) {
  return std::make_unique<ThreadEngine>(fd, file, threads);
}

}  // namespace k25::parallel
