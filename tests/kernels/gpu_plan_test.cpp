// Plans for the GPU are made in every build, with the same bytes; only running needs the CUDA
// build. The numbers are counted by hand, so both builds are held against one table.

#include <gtest/gtest.h>

#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/conv1d/conv1d.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/gemm/gemm.h"
#include "kernels/kda/kda.h"
#include "kernels/kda/kda_step.h"
#include "kernels/kda_gate/kda_gate.h"
#include "kernels/l2norm/l2norm.h"
#include "kernels/residual/residual.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

constexpr DType kBf16 = DType::kBFloat16;
constexpr Device kGpu = Device::kCuda;
constexpr std::int64_t kLibrary = (std::int64_t{32} << 20) + 256;  // cuBLASLt's part

TEST(GpuPlan, AttentionTakesAListOfTilesAndDelta) {
  const auto bytes = [](std::int64_t batch, std::int64_t tokens) {
    return attention_plan({.batch = batch,
                           .tokens = tokens,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 64,
                           .dtype = kBf16,
                           .device = kGpu})
        .workspace_bytes.n;
  };
  // (16 counts + 2 x 100 tiles) x 4 = 864, to 64: 896; delta 2 x 4 x 100 x 4 = 3200.
  EXPECT_EQ(bytes(2, 100), 896 + 3200);
  // (32 + 17 x 3) x 4 = 332, to 64: 384; delta 17 x 4 x 3 x 4 = 816, to 64: 832.
  EXPECT_EQ(bytes(17, 3), 384 + 832);
  EXPECT_EQ(bytes(0, 3), 0);
}

TEST(GpuPlan, EmbeddingTakesListsOfPositions) {
  const auto bytes = [](std::int64_t tokens, std::int64_t vocab) {
    return embedding_plan(
               {.tokens = tokens, .vocab = vocab, .hidden = 8, .dtype = kBf16, .device = kGpu})
        .workspace_bytes.n;
  };
  // Totals 16; count and cursor 4 x 50 = 200, to 16: 208; few 50 x 16; many 1 x 16; 100 positions.
  EXPECT_EQ(bytes(100, 50), 16 + 208 + 208 + 800 + 16 + 400);
  EXPECT_EQ(bytes(3, 50), 16 + 208 + 208 + 48 + 0 + 16);
}

TEST(GpuPlan, RmsNormTakesPartialSumsOfItsBlocks) {
  const auto bytes = [](std::int64_t rows, std::int64_t cols) {
    return rmsnorm_plan({.rows = rows, .cols = cols, .dtype = kBf16, .device = kGpu})
        .workspace_bytes.n;
  };
  // 2048 columns are 256 vectors: blocks of 256 threads, four to each of 132 multiprocessors.
  EXPECT_EQ(bytes(32768, 2048), 132 * 4 * 2048 * 4);
  EXPECT_EQ(bytes(100, 2048), 100 * 2048 * 4);
  // 64 columns are 8 vectors: 32 rows to a block of 256 threads.
  EXPECT_EQ(bytes(100, 64), 4 * 64 * 4);
  // 16384 columns are 2048 vectors, too long for shared memory: 64 blocks.
  EXPECT_EQ(bytes(1000, 16384), 64 * 16384 * 4);
  EXPECT_EQ(bytes(0, 64), 0);
}

TEST(GpuPlan, ProductsTakeTheLibrarysScratch) {
  const auto bytes = [](DType ab, DType d) {
    return gemm_plan({.m = 3000, .n = 20000, .k = 5, .dtype_ab = ab, .dtype_d = d, .device = kGpu})
        .workspace_bytes.n;
  };
  EXPECT_EQ(bytes(kBf16, kBf16), kLibrary);
  EXPECT_EQ(bytes(kBf16, DType::kFloat32), kLibrary);
  // bf16 of fp32 operands is formed in an fp32 part of 1024 x 16384.
  EXPECT_EQ(bytes(DType::kFloat32, kBf16), kLibrary + std::int64_t{1024} * 16384 * 4);
}

TEST(GpuPlan, CrossEntropyTakesOneTileOfLogits) {
  const auto plan = cross_entropy_plan(
      {.rows = 1000, .hidden = 64, .vocab = 5000, .dtype = kBf16, .device = kGpu});
  EXPECT_EQ(plan.row_tile, 1000);
  EXPECT_EQ(plan.vocab_chunk, 5000);
  // Rows of 5000 are padded to 5056. Logits fp32, their gradient bf16, dx fp32 [1000, 64], and
  // three numbers a row, each piece to 64 bytes.
  const std::int64_t pieces =
      1000 * 5056 * 4 + 1000 * 5056 * 2 + 1000 * 64 * 4 + 3 * ((4000 + 63) / 64 * 64);
  EXPECT_EQ(plan.workspace_bytes.n, pieces + kLibrary);
}

TEST(GpuPlan, DeltaAttentionTakesScratchForItsBlocksAndStates) {
  KdaDesc d{.batch = 1, .tokens = 100, .heads = 1, .value_heads = 2, .key_dim = 64};
  d.value_dim = 128;
  d.dtype = kBf16;
  d.device = kGpu;
  // Forward: 2 heads x 2 slices, each 64 x 64 + 64 x (6 x 64 + 2 x 64) + 2 x 64^2 + 13 x 64 + 64
  // floats. Backward: one block of 3 x 64 x 128 + 64 x (17 x 64 + 5 x 128) + 6 x 64^2 + 14 x 64
  // + 64.
  const std::int64_t forward = 4 * 45952 * 4, backward = 160704 * 4, states = 2 * 64 * 128 * 4;
  EXPECT_EQ(kda_plan(d).forward_workspace_bytes.n, forward);
  EXPECT_EQ(kda_plan(d).backward_workspace_bytes.n, states + forward);
  EXPECT_EQ(kda_plan(d).saved_bytes.n, 0);
  d.keep = KdaKeep::kStates;
  EXPECT_EQ(kda_plan(d).backward_workspace_bytes.n, backward);
  EXPECT_EQ(kda_plan(d).saved_bytes.n, states);
  EXPECT_EQ(kda_step_plan({.sequences = 3,
                           .heads = 1,
                           .value_heads = 1,
                           .key_dim = 64,
                           .value_dim = 64,
                           .dtype = kBf16,
                           .device = kGpu})
                .workspace_bytes.n,
            0);
}

TEST(GpuPlan, TheLayersAroundItTakePartialSums) {
  const auto norm = [](std::int64_t rows, std::int64_t heads, std::int64_t cols) {
    return gated_rmsnorm_plan(
               {.rows = rows, .heads = heads, .cols = cols, .dtype = kBf16, .device = kGpu})
        .workspace_bytes.n;
  };
  EXPECT_EQ(norm(100, 4, 64), 7 * 64 * 4);  // 400 heads, 64 to a block
  EXPECT_EQ(norm(32768, 32, 128), 528 * 128 * 4);
  EXPECT_EQ(norm(0, 4, 64), 0);
  // 16 pieces of 64 rows; 200 columns are two tiles.
  EXPECT_EQ(kda_gate_plan({.rows = 1000, .heads = 2, .cols = 200, .dtype = kBf16, .device = kGpu})
                .workspace_bytes.n,
            16 * 2 * (200 + 2) * 4);
  const auto conv = [](std::int64_t batch, std::int64_t tokens) {
    return conv1d_plan(
               {.batch = batch, .tokens = tokens, .channels = 10, .dtype = kBf16, .device = kGpu})
        .workspace_bytes.n;
  };
  EXPECT_EQ(conv(2, 100), 4 * 10 * 4 * 4);  // two tiles of 64 tokens to a row
  EXPECT_EQ(conv(300, 5), 256 * 10 * 4 * 4);
  EXPECT_EQ(conv(2, 0), 0);
  EXPECT_EQ(l2norm_plan({.rows = 8, .cols = 8, .dtype = kBf16, .device = kGpu}).workspace_bytes.n,
            0);
}

TEST(GpuPlan, ElementwiseOpsTakeNothing) {
  EXPECT_EQ(swiglu_plan({.rows = 8, .cols = 8, .dtype = kBf16, .device = kGpu}).workspace_bytes.n,
            0);
  EXPECT_EQ(residual_plan({.count = 8, .dtype = kBf16, .device = kGpu}).workspace_bytes.n, 0);
  EXPECT_EQ(
      rope_plan(
          {.rows = 8, .heads = 2, .head_dim = 8, .max_position = 8, .dtype = kBf16, .device = kGpu})
          .workspace_bytes.n,
      0);
}

// In a CPU build running such a plan is refused before anything is read.
TEST(GpuPlan, RunningOneNeedsTheCudaBuild) {
  if constexpr (kWithCuda) return;
  std::vector<float> memory(1 << 12);
  const auto f32 = [&](std::initializer_list<std::int64_t> shape) {
    return Tensor(memory.data(), DType::kFloat32, shape, kGpu);
  };
  const auto i32 = [&](std::initializer_list<std::int64_t> shape) {
    return Tensor(memory.data(), DType::kInt32, shape, kGpu);
  };
  Context ctx;
  const Workspace workspace{memory.data(), Bytes{1 << 12}};
  const auto refused = [](const char* op, const std::function<void()>& run) {
    EXPECT_TRUE(op_test::throws_error(run, ErrorKind::kUsage, {op, "this is no CUDA build"}));
  };
  refused("gemm", [&] {
    const GemmPlan plan = gemm_plan({.m = 2, .n = 2, .k = 2, .device = kGpu});
    gemm_forward(ctx, plan, {f32({2, 2}), f32({2, 2})}, {f32({2, 2})}, workspace);
  });
  refused("swiglu", [&] {
    swiglu_forward(ctx, swiglu_plan({.rows = 2, .cols = 2, .device = kGpu}), {f32({2, 4})},
                   {f32({2, 2})}, {});
  });
  refused("residual", [&] {
    residual_forward(ctx, residual_plan({.count = 4, .device = kGpu}), {f32({4}), f32({4})},
                     {f32({4})}, {});
  });
  refused("rmsnorm", [&] {
    rmsnorm_forward(ctx, rmsnorm_plan({.rows = 2, .cols = 2, .device = kGpu}),
                    {.x_ND = f32({2, 2}), .residual_ND = {}, .gain_D = f32({2})},
                    {.sum_ND = {}, .y_ND = f32({2, 2}), .rstd_N = f32({2})}, {});
  });
  refused("rope", [&] {
    const RopePlan plan =
        rope_plan({.rows = 2, .heads = 1, .head_dim = 2, .max_position = 2, .device = kGpu});
    rope_forward(ctx, plan, {f32({2, 1, 2}), i32({2}), f32({2, 2})}, {f32({2, 1, 2})}, {});
  });
  refused("embedding", [&] {
    const EmbeddingPlan plan =
        embedding_plan({.tokens = 2, .vocab = 2, .hidden = 2, .device = kGpu});
    embedding_forward(ctx, plan, {i32({2}), f32({2, 2})}, {f32({2, 2})}, workspace);
  });
  refused("l2norm", [&] {
    l2norm_forward(ctx, l2norm_plan({.rows = 2, .cols = 2, .device = kGpu}), {f32({2, 1, 2})},
                   {f32({2, 1, 2}), f32({2, 1})}, {});
  });
  refused("gated_rmsnorm", [&] {
    gated_rmsnorm_forward(ctx, gated_rmsnorm_plan({.rows = 2, .cols = 2, .device = kGpu}),
                          {f32({2, 1, 2}), f32({2, 1, 2}), f32({2})}, {f32({2, 1, 2}), f32({2, 1})},
                          {});
  });
  refused("kda_gate", [&] {
    kda_gate_forward(ctx, kda_gate_plan({.rows = 2, .cols = 2, .device = kGpu}),
                     {f32({2, 1, 2}), f32({1}), f32({1, 2})}, {f32({2, 1, 2})}, {});
  });
  refused("kda_beta", [&] {
    kda_beta_forward(ctx, kda_beta_plan({.rows = 2, .device = kGpu}), {f32({2, 1})}, {f32({2, 1})},
                     {});
  });
  refused("conv1d", [&] {
    conv1d_forward(ctx, conv1d_plan({.batch = 1, .tokens = 2, .channels = 2, .device = kGpu}),
                   {f32({1, 2, 2}), f32({2, 4}), {}, {}}, {f32({1, 2, 2}), {}}, {});
  });
  refused("kda", [&] {
    const KdaPlan plan = kda_plan({.batch = 1,
                                   .tokens = 2,
                                   .heads = 1,
                                   .value_heads = 1,
                                   .key_dim = 64,
                                   .value_dim = 64,
                                   .device = kGpu});
    const auto t = f32({1, 2, 1, 64});
    kda_forward(ctx, plan, {t, t, t, t, f32({1, 2, 1}), {}, {}, {}}, {t, {}, {}, {}}, workspace);
  });
  refused("kda_step", [&] {
    const KdaStepPlan plan = kda_step_plan({.sequences = 1,
                                            .heads = 1,
                                            .value_heads = 1,
                                            .key_dim = 64,
                                            .value_dim = 64,
                                            .device = kGpu});
    const auto t = f32({1, 1, 1, 64});
    kda_decode(ctx, plan, {t, t, t, t, f32({1, 1, 1})}, {t, f32({1, 1, 64, 64})}, {});
  });
  refused("attention", [&] {
    const AttentionPlan plan = attention_plan(
        {.batch = 1, .tokens = 2, .heads = 1, .kv_heads = 1, .head_dim = 2, .device = kGpu});
    const auto t = f32({1, 2, 1, 2});
    attention_forward(ctx, plan, {t, t, t, {}, {}}, {t, f32({1, 1, 2})}, workspace);
  });
  refused("cross_entropy", [&] {
    const CrossEntropyPlan plan =
        cross_entropy_plan({.rows = 2, .hidden = 2, .vocab = 2, .device = kGpu});
    cross_entropy_forward(ctx, plan, {f32({2, 2}), f32({2, 2}), i32({2})}, {f32({2}), f32({2}), {}},
                          workspace);
  });
}

}  // namespace
}  // namespace k25::kernels
