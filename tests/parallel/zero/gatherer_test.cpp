// This rank's parts of gathered units between their uses.
#include "parallel/zero/gatherer.h"

#include <gtest/gtest.h>

#include "tests/parallel/zero/zero_store_fixture.h"

namespace k25::parallel {
namespace {

using GathererTest = ZeroStoreTest;

// With a buffer for each unit a part is formed once, and then by the updates alone: those of frozen
// parameters and of a step without update stay.
TEST_F(GathererTest, UpdatesKeepThePartsOfGatheredUnits) {
  for (const ReshardAfter reshard :
       {ReshardAfter::kForward, ReshardAfter::kMicroBatch, ReshardAfter::kStep}) {
    ZeroStore store = make({.reshard_after = reshard, .compute = DType::kBFloat16});
    toy_.init(store);
    int copies = 0;
    const auto expect_rounded_masters = [&](int u) {
      const std::vector<Tensor>& views = store.acquire(u);
      for (std::size_t p = 0; p < views.size(); ++p) {
        if (views[p].dtype() != DType::kBFloat16) continue;
        const float* master = store.master(u).data<float>() + store.layout(u).offsets[p];
        for (std::int64_t i = 0; i < views[p].numel(); ++i) {
          ASSERT_EQ(views[p].data<BFloat16>()[i].bits, BFloat16(master[i]).bits) << u << " " << i;
        }
      }
      store.release(u, Phase::kBackward);
    };
    for (int step = 0; step < 3; ++step) {
      store.begin_step();
      for (const int u : {5, 3, 2, 0}) expect_rounded_masters(u);
      store.prefetch(3);  // in flight while the update writes
      store.end_micro_batch();
      store.finish_gradients();
      copies = 0;
      if (step != 1) {
        store.update([&](Context&, const UpdatePiece& piece) {
          EXPECT_FALSE(piece.parameter.frozen);
          for (std::int64_t i = 0; i < piece.master.numel(); ++i) {
            float& w = piece.master.data<float>()[i];
            w = 1.7F * w + 0.1F;
            if (piece.copy_out) piece.copy_out.data<BFloat16>()[i] = BFloat16(w);
          }
          copies += piece.copy_out ? 1 : 0;
        });
        // embedding, layers.0 (one parameter is empty), layers.1 (one is frozen)
        EXPECT_EQ(copies, reshard == ReshardAfter::kForward ? 0 : 1 + 2 + 2);
      }
      store.end_step();
    }
    for (const int u : {5, 3, 2, 0}) expect_rounded_masters(u);
    store.master(2).data<float>()[0] = 9.0F;
    store.invalidate();
    expect_rounded_masters(2);
  }
}

}  // namespace
}  // namespace k25::parallel
