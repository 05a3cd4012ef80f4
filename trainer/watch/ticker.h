#pragma once
// A thread that does something now and then, off the step's thread.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace k25::trainer {

class Ticker {
 public:
  /// `body` must not throw.
  Ticker(std::chrono::milliseconds every, std::function<void()> body);
  /// Waits for a body that runs.
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  void run();

  std::chrono::milliseconds every_;
  std::function<void()> body_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace k25::trainer
