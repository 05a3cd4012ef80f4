// Updates that are guessed during the last backward pass: kept, done anew, or dropped.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <future>
#include <thread>
#include <vector>

#include "parallel/zero/zero_store.h"
#include "tests/data/scratch_folder.h"
#include "tests/parallel/zero/toy.h"

namespace k25::parallel {
namespace {

using data::expect_error;

constexpr std::int64_t kElems = 4096;

// Three units of one chunk each.
std::vector<UnitSpec> three_units() {
  return {{"low", Placement::kSharded, {toy_parameter("low", {kElems})}},
          {"mid", Placement::kSharded, {toy_parameter("mid", {kElems})}},
          {"top", Placement::kSharded, {toy_parameter("top", {kElems})}}};
}

ZeroOptions options(double early, Place params = Place::kDevice) {
  return {.compute = DType::kBFloat16,
          .offload = {.optimizer = Place::kHost, .params = params, .threads = 2, .early = early}};
}

class EarlyUpdateTest : public testing::Test {
 protected:
  ZeroStore make(double early, Place params = Place::kDevice) {
    return {mesh_, three_units(), options(early, params), context_, allocator_, &host_};
  }

  /// master += gradient + add, m += 1, v += 2; counts what it did beside the old state and in it.
  ShardUpdate adding(float add) {
    return [this, add](Context&, const UpdatePiece& piece) {
      const bool aside = static_cast<bool>(piece.old_master);
      ++(aside ? aside_ : in_place_);
      const auto next = [&](const Tensor& old, const Tensor& now, std::int64_t i) {
        return (aside ? old : now).data<float>()[i];
      };
      for (std::int64_t i = 0; i < piece.master.numel(); ++i) {
        piece.master.data<float>()[i] =
            next(piece.old_master, piece.master, i) + piece.gradient.data<float>()[i] + add;
        piece.m.data<float>()[i] = next(piece.old_m, piece.m, i) + 1.0F;
        piece.v.data<float>()[i] = next(piece.old_v, piece.v, i) + 2.0F;
        if (piece.copy_out) {
          piece.copy_out.data<BFloat16>()[i] = BFloat16(piece.master.data<float>()[i]);
        }
      }
    };
  }

  /// Gradients of 1 in every unit, up to finish_gradients.
  static void backward(ZeroStore& store, const ShardUpdate& guess) {
    store.begin_step();
    store.guess_update(guess);
    for (const int unit : {2, 1, 0}) {
      store.acquire(unit);
      for (const Tensor& gradient : store.gradient(unit)) {
        std::fill_n(gradient.data<float>(), gradient.numel(), 1.0F);
      }
      store.release(unit, Phase::kBackward);
      store.gradient_done(unit);
    }
    store.end_micro_batch();
    store.finish_gradients();
  }

  static void expect_state(ZeroStore& store, float master, float m, float v) {
    for (const int unit : {0, 1, 2}) {
      for (const std::int64_t at : {std::int64_t{0}, kElems - 1}) {
        float is_master = 0.0F, is_m = 0.0F, is_v = 0.0F;
        store.read_state(unit, at, {.master = {&is_master, 1}, .m = {&is_m, 1}, .v = {&is_v, 1}});
        EXPECT_EQ(is_master, master) << unit;
        EXPECT_EQ(is_m, m) << unit;
        EXPECT_EQ(is_v, v) << unit;
      }
      // What the blocks compute with.
      const Tensor weight = store.acquire(unit).front();
      EXPECT_EQ(static_cast<float>(weight.data<BFloat16>()[kElems - 1]), master) << unit;
      store.release(unit, Phase::kForward);
    }
  }

  /// Until the guess has been carried out for all three units.
  void wait_for_all_guesses() const {
    while (aside_.load() % 3 != 0 || aside_.load() == 0) std::this_thread::yield();
  }

  std::unique_ptr<World> world_ = World::create({});
  Mesh mesh_{*world_, {}};
  HostAllocator allocator_, host_;
  Context context_;
  std::atomic<int> aside_{0}, in_place_{0};
};

class EarlyUpdatePlacesTest : public EarlyUpdateTest, public testing::WithParamInterface<Place> {};
INSTANTIATE_TEST_SUITE_P(Params, EarlyUpdatePlacesTest,
                         testing::Values(Place::kDevice, Place::kHost));

TEST_P(EarlyUpdatePlacesTest, ARightGuessIsKept) {
  ZeroStore store = make(1.0, GetParam());
  for (const float done : {1.0F, 2.0F, 3.0F}) {
    aside_ = 0;
    backward(store, adding(10.0F));
    wait_for_all_guesses();
    store.update(adding(10.0F), Guess::kRight);
    store.end_step();
    expect_state(store, done * 11.0F, done, done * 2.0F);
    EXPECT_EQ(aside_, 3);
  }
  EXPECT_EQ(in_place_, 0);
}

TEST_P(EarlyUpdatePlacesTest, AWrongGuessIsDoneAnewFromTheOldState) {
  ZeroStore store = make(1.0, GetParam());
  for (const float done : {1.0F, 2.0F}) {
    aside_ = 0;
    backward(store, adding(100.0F));
    wait_for_all_guesses();
    store.update(adding(10.0F), Guess::kWrong);
    store.end_step();
    expect_state(store, done * 11.0F, done, done * 2.0F);
  }
  EXPECT_EQ(in_place_, 6);
}

TEST_P(EarlyUpdatePlacesTest, WithoutAnUpdateNothingHasChanged) {
  ZeroStore store = make(1.0, GetParam());
  backward(store, adding(100.0F));
  wait_for_all_guesses();
  store.end_step();
  expect_state(store, 0.0F, 0.0F, 0.0F);
  aside_ = 0;
  backward(store, adding(10.0F));
  wait_for_all_guesses();
  store.update(adding(10.0F), Guess::kRight);
  store.end_step();
  expect_state(store, 11.0F, 1.0F, 2.0F);
}

TEST_F(EarlyUpdateTest, AGradientThatIsWrittenAgainCounts) {
  ZeroStore store = make(1.0);
  backward(store, adding(10.0F));
  wait_for_all_guesses();
  std::fill_n(store.shard_gradient(1).data<float>(), kElems, 5.0F);
  store.gradient_written(1);
  store.update(adding(10.0F), Guess::kRight);
  store.end_step();
  float master = 0.0F, m = 0.0F, v = 0.0F;
  store.read_state(1, 0, {.master = {&master, 1}, .m = {&m, 1}, .v = {&v, 1}});
  EXPECT_EQ(master, 15.0F);
  EXPECT_EQ(m, 1.0F);
  store.read_state(2, 0, {.master = {&master, 1}});
  EXPECT_EQ(master, 11.0F);
}

// The thread is still in its first unit when the update comes.
TEST_F(EarlyUpdateTest, WhatTheGuessHasNotReachedIsUpdatedAfterwards) {
  ZeroStore store = make(1.0);
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  const ShardUpdate update = adding(10.0F);
  backward(store, [opened, update](Context& context, const UpdatePiece& piece) {
    opened.wait();
    update(context, piece);
  });
  store.update(update, Guess::kRight);
  store.end_step();
  gate.set_value();
  expect_state(store, 11.0F, 1.0F, 2.0F);
  EXPECT_EQ(aside_ + in_place_, 3);
  EXPECT_LE(aside_, 1);
}

TEST_F(EarlyUpdateTest, AFailureOfTheGuessIsToldByTheNextCall) {
  ZeroStore store = make(1.0);
  std::atomic<bool> called{false};
  expect_error(
      ErrorKind::kUsage,
      [&] {
        backward(store, [&](Context&, const UpdatePiece&) {
          called = true;
          fail(ErrorKind::kUsage, "no such number");
        });
        while (!called) std::this_thread::yield();
        store.update(adding(10.0F), Guess::kRight);
        store.end_step();
        store.master(2);
      },
      "no such number");
}

TEST_F(EarlyUpdateTest, TheHighestUnitsHaveRoomForTheirSecondCopy) {
  const auto staging = [](const std::vector<UnitSpec>& units, const ZeroOptions& o) {
    return ZeroStore::plan(units, {}, o).host.staging.n;
  };
  const std::int64_t without = staging(three_units(), options(0.0));
  constexpr std::int64_t kOne = 3 * kElems * 4;
  EXPECT_EQ(staging(three_units(), options(0.3)), without);
  EXPECT_EQ(staging(three_units(), options(0.4)), without + kOne);
  EXPECT_EQ(staging(three_units(), options(1.0)), without + 3 * kOne);
  std::vector<UnitSpec> frozen = three_units();
  frozen[2].parameters[0].frozen = true;
  EXPECT_EQ(staging(frozen, options(1.0)), without + 2 * kOne);
  EXPECT_FALSE(make(0.0).can_guess());
  EXPECT_TRUE(make(0.4).can_guess());

  const data::ScratchFolder folder;
  ZeroOptions in_file = options(1.0);
  in_file.offload.nvme = folder.path();
  EXPECT_FALSE(ZeroStore(mesh_, three_units(), in_file, context_, allocator_, &host_).can_guess());
  for (const double wrong : {-0.1, 1.1, std::nan("")}) {
    expect_error(
        ErrorKind::kUsage, [&] { ZeroStore::plan(three_units(), {}, options(wrong)); },
        "offload.early is");
  }
}

}  // namespace
}  // namespace k25::parallel
