#include "trainer/watch/ticker.h"

#include <utility>

namespace k25::trainer {

Ticker::Ticker(std::chrono::milliseconds every, std::function<void()> body)
    : every_(every), body_(std::move(body)), thread_([this] { run(); }) {}

Ticker::~Ticker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  thread_.join();
}

void Ticker::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    body_();
    lock.lock();
    stopping_.wait_for(lock, every_, [this] { return stop_; });
  }
}

}  // namespace k25::trainer
