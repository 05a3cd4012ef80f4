// main of every MPI test. The result is reduced over the ranks, so a failure on any rank fails the
// run; only the ranks that failed print. A hang is ended by the world's watchdog, or by ctest.

#include "tests/mpi_main.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <sstream>
#include <string>

#include "kernels/core/check.h"

namespace k25::parallel {
namespace {

std::unique_ptr<World>& world_slot() {
  static std::unique_ptr<World> world;
  return world;
}

/// Collects what a rank would print, and remembers the failures.
class Report : public testing::EmptyTestEventListener {
 public:
  // gtest holds its lock while it reports a result, so the test's name is asked for before.
  void OnTestStart(const testing::TestInfo& test) override {
    test_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  void OnTestEnd(const testing::TestInfo& /*test*/) override { test_ = "outside a test"; }
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (!part.failed()) return;
    text_ << test_ << ": " << (part.file_name() == nullptr ? "" : part.file_name()) << ':'
          << part.line_number() << "\n"
          << part.message() << "\n";
  }
  void print() const {
    const std::string text = text_.str();
    if (text.empty()) return;
    std::fprintf(stderr, "rank %d of %d failed:\n%s", test_world().rank(), test_world().size(),
                 text.c_str());
  }

 private:
  std::string test_ = "outside a test";
  std::ostringstream text_;
};

int run() {
  WorldOptions options;
  options.timeout = std::chrono::seconds(30);
  world_slot() = World::create(options);
  World& world = test_world();
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  auto* report = new Report;  // owned by gtest
  if (world.size() > 1) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(report);

  int result = RUN_ALL_TESTS();
  if (testing::UnitTest::GetInstance()->test_to_run_count() == 0) {
    std::fprintf(stderr, "no tests ran\n");
    result = 1;
  }
  report->print();
  std::int64_t failed = result != 0 ? 1 : 0;
  AllReduceSmall args;
  args.integers = &failed;
  args.count = 1;
  world.comm().all_reduce_small({"test result"}, args).wait();
  if (world.rank() == 0) {
    std::printf("%lld of %d ranks failed, %d tests on each\n", static_cast<long long>(failed),
                world.size(), testing::UnitTest::GetInstance()->test_to_run_count());
  }
  world.finish();
  return failed != 0 ? 1 : 0;
}

}  // namespace

World& test_world() { return *world_slot(); }

}  // namespace k25::parallel

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  try {
    const int result = k25::parallel::run();
    k25::parallel::world_slot().reset();
    return result;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    auto& world = k25::parallel::world_slot();
    if (world != nullptr) {
      std::fprintf(stderr, "%s", world->dump().c_str());
      world->abort(1);
    }
    return 1;
  }
}
