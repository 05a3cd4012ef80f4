// Moments in a file, seen through the store: what is written comes back, whatever the ranges.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "parallel/zero/zero_store.h"
#include "tests/data/scratch_folder.h"
#include "tests/parallel/zero/toy.h"

namespace k25::parallel {
namespace {

using data::expect_error;

constexpr std::int64_t kChunk = std::int64_t{1} << 22;  // elements

class NvmeMomentsTest : public testing::Test {
 protected:
  ZeroOptions options() const {
    return {.offload = {.optimizer = Place::kHost, .threads = 2, .nvme = folder_.path()}};
  }
  ZeroStore make(const std::vector<UnitSpec>& units) {
    return {mesh_, units, options(), context_, allocator_, &host_};
  }

  data::ScratchFolder folder_;
  std::unique_ptr<World> world_ = World::create({});
  Mesh mesh_{*world_, {}};
  HostAllocator allocator_, host_;
  Context context_;
};

std::vector<float> counting(std::int64_t n, float from) {
  std::vector<float> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), from);
  return values;
}

// One unit of two chunks, the second one not full, and a small one behind it.
std::vector<UnitSpec> two_units() {
  return {{"large", Placement::kSharded, {toy_parameter("large", {kChunk + 4096})}},
          {"small", Placement::kSharded, {toy_parameter("small", {100})}}};
}

TEST_F(NvmeMomentsTest, ThePlanByHand) {
  const ZeroPlan plan = ZeroStore::plan(two_units(), {}, options());
  EXPECT_EQ(plan.host.moments.n, 0);
  EXPECT_EQ(plan.nvme.n, 3 * 2 * kChunk * 4);
  EXPECT_EQ(plan.host.staging.n, 4 * 2 * kChunk * 4 + 4096);
  ZeroOptions in_memory = options();
  in_memory.offload.nvme.clear();
  EXPECT_EQ(ZeroStore::plan(two_units(), {}, in_memory).nvme.n, 0);

  // Chunks no larger than the largest shard, in whole granules.
  const ZeroPlan small = ZeroStore::plan({two_units()[1]}, {}, options());
  EXPECT_EQ(small.nvme.n, 2 * 4096 * 4);

  const ZeroStore store = make(two_units());
  EXPECT_EQ(host_.live(), plan.host.total());
  EXPECT_EQ(allocator_.live(), plan.total());
}

TEST_F(NvmeMomentsTest, RangesComeBackAcrossChunks) {
  ZeroStore store = make(two_units());
  std::vector<float> zero(10, 1.0F), also(10, 1.0F);
  store.read_state(0, kChunk - 5, {.m = zero, .v = also});
  EXPECT_EQ(zero, std::vector<float>(10, 0.0F));
  EXPECT_EQ(also, std::vector<float>(10, 0.0F));

  const std::vector<float> m = counting(100, 1.0F), v = counting(100, 1001.0F);
  store.write_state(0, kChunk - 50, {.m = m, .v = v});
  store.write_state(1, 0, {.master = v, .m = v, .v = m});
  std::vector<float> back_m(104), back_v(104);
  store.read_state(0, kChunk - 52, {.m = back_m, .v = back_v});
  for (std::size_t i = 0; i < 104; ++i) {
    const bool inside = i >= 2 && i < 102;
    ASSERT_EQ(back_m[i], inside ? m[i - 2] : 0.0F) << i;
    ASSERT_EQ(back_v[i], inside ? v[i - 2] : 0.0F) << i;
  }
  std::vector<float> master(100), small_m(100), small_v(100);
  store.read_state(1, 0, {.master = master, .m = small_m, .v = small_v});
  EXPECT_EQ(master, v);
  EXPECT_EQ(small_m, v);
  EXPECT_EQ(small_v, m);
}

// Each update adds one to every m and two to every v.
TEST_F(NvmeMomentsTest, UpdatesReachEveryChunkBetweenReads) {
  ZeroStore store = make(two_units());
  const auto update = [](Context&, const UpdatePiece& piece) {
    for (std::int64_t i = 0; i < piece.m.numel(); ++i) {
      piece.m.data<float>()[i] += 1.0F;
      piece.v.data<float>()[i] += 2.0F;
    }
  };
  const auto step = [&] {
    store.begin_step();
    for (const int unit : {0, 1}) {
      store.acquire(unit);
      store.release(unit, Phase::kBackward);
      store.gradient_done(unit);
    }
    store.end_micro_batch();
    store.finish_gradients();
    store.update(update);
    store.end_step();
  };
  float done = 0.0F;
  for (const int steps : {1, 2, 3}) {
    for (int s = 0; s < steps; ++s) step();
    done += static_cast<float>(steps);
    for (const auto& [unit, at] : {std::pair{0, std::int64_t{0}},
                                   {0, kChunk - 1},
                                   {0, kChunk},
                                   {0, kChunk + 4095},
                                   {1, std::int64_t{99}}}) {
      float m = 0.0F, v = 0.0F;
      store.read_state(unit, at, {.m = {&m, 1}, .v = {&v, 1}});
      EXPECT_EQ(m, done) << unit << " " << at;
      EXPECT_EQ(v, 2 * done) << unit << " " << at;
    }
  }
}

TEST_F(NvmeMomentsTest, FrozenAndResidentUnitsAreNotInTheFile) {
  std::vector<UnitSpec> units = two_units();
  units[1].parameters[0].frozen = true;
  ZeroStore store = make(units);
  EXPECT_EQ(store.m(1).numel(), store.master(1).numel());
  expect_error(ErrorKind::kInternal, [&] { store.m(0); }, "the moments of large are in a file");
  EXPECT_FALSE(store.nvme_text().empty());
  ZeroOptions resident = options();
  resident.offload.resident = 1.0;
  EXPECT_EQ(ZeroStore::plan(units, {}, resident).nvme.n, 0);
}

TEST_F(NvmeMomentsTest, AFolderThatIsNotThereIsToldBeforeTheFirstStep) {
  ZeroOptions missing = options();
  missing.offload.nvme /= "none";
  expect_error(
      ErrorKind::kUsage,
      [&] { ZeroStore store(mesh_, two_units(), missing, context_, allocator_, &host_); },
      "offload.nvme: " + (folder_ / "none").string() + ": cannot hold");
}

}  // namespace
}  // namespace k25::parallel
