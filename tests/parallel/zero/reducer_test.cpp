// What gradients hold when their blocks write them first.
#include "parallel/zero/reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/parallel/zero/zero_store_fixture.h"

namespace k25::parallel {
namespace {

using ReducerTest = ZeroStoreTest;

// Formed in its shard (one slot), with a buffer of its own, and with one of the pool: each step
// leaves its gradients there, and the next may leave a unit out, or give it nothing but a word.
TEST_F(ReducerTest, WhatAStepDoesNotWriteIsZero) {
  for (const std::int64_t slots : {1, 2}) {
    for (const std::int64_t per_slot : {1, 2}) {
      ZeroStore store =
          make({.open_gradients = 2, .slots = slots, .micro_batches_per_slot = per_slot});
      const auto step = [&](const std::function<void(std::int64_t)>& micro_batch) {
        store.begin_step();
        for (std::int64_t i = 0; i < slots * per_slot; ++i) {
          micro_batch(i);
          store.end_micro_batch();
        }
        store.finish_gradients();
      };
      const auto all = [&](int unit, float value) {
        const Tensor sums = store.shard_gradient(unit);
        return std::all_of(sums.data<float>(), sums.data<float>() + sums.numel(),
                           [&](float x) { return x == value; });
      };
      step([&](std::int64_t) {
        for (const int u : {0, 2, 3}) {
          for (const Tensor& g : store.gradient(u)) {
            if (g) std::fill_n(g.data<float>(), g.numel(), 7.0F);
          }
          store.gradient_done(u);
        }
      });
      EXPECT_EQ(store.shard_gradient(0).data<float>()[0], 7.0F * static_cast<float>(slots));
      store.end_step();
      step([&](std::int64_t) { store.gradient_done(2); });
      for (const int u : {0, 2, 3}) EXPECT_TRUE(all(u, 0.0F)) << u;
      store.end_step();
      // Asked for in the slot's last micro-batch only, and twice in it.
      step([&](std::int64_t i) {
        if (i % per_slot == per_slot - 1) {
          store.gradient(0);
          EXPECT_EQ(store.gradient_state(0), GradientState::kUnwritten);
          const Tensor g = Toy::open_gradient(store, 0)[0];
          EXPECT_EQ(store.gradient_state(0), GradientState::kSums);
          std::fill_n(g.data<float>(), g.numel(), 1.0F);
        }
        store.gradient_done(0);
      });
      EXPECT_EQ(store.shard_gradient(0).data<float>()[17], static_cast<float>(slots));
      EXPECT_TRUE(all(2, 0.0F) && all(3, 0.0F));
      store.end_step();
    }
  }
}

TEST_F(ReducerTest, AFrozenParametersGradientIsZeroThoughItsBlockWrites) {
  ZeroStore store = make({});  // formed in its shard
  for (int step = 0; step < 2; ++step) {
    store.begin_step();
    Toy::open_gradient(store, 3);
    store.gradient_done(3);
    store.end_micro_batch();
    store.finish_gradients();
    const Tensor sums = store.shard_gradient(3);
    for (std::int64_t i = 0; i < sums.numel(); ++i) ASSERT_EQ(sums.data<float>()[i], 0.0F) << i;
    std::fill_n(sums.data<float>(), sums.numel(), 7.0F);  // the next step's to clear
    store.end_step();
  }
}

TEST_F(ReducerTest, OneRankWithOneSlotLeavesTheLookToTheSums) {
  EXPECT_FALSE(make({.slots = 2}).sums_are_own());
  ZeroStore store = make({.micro_batches_per_slot = 2});
  EXPECT_TRUE(store.sums_are_own());
  store.begin_step();
  for (int i = 0; i < 2; ++i) {
    Toy::open_gradient(store, 3)[2].data<float>()[4] = std::nanf("");
    store.gradient_done(3);
    store.end_micro_batch();
  }
  store.finish_gradients();
  EXPECT_EQ(store.first_bad_gradient().unit, -1);
  EXPECT_TRUE(std::isnan(store.shard_gradient(3).data<float>()[store.layout(3).offsets[2] + 4]));
}

}  // namespace
}  // namespace k25::parallel
