// Ops never allocate, with or without a thread pool.

#include <gtest/gtest.h>

#include "kernels/adamw/adamw.h"
#include "kernels/conv1d/conv1d.h"
#include "kernels/convert/convert.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/kda/kda.h"
#include "kernels/kda/kda_step.h"
#include "kernels/kda_gate/kda_gate.h"
#include "kernels/l2norm/l2norm.h"
#include "kernels/reduce/reduce.h"
#include "kernels/residual/residual.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/swiglu/swiglu.h"
#include "tests/kernels/allocation_counter.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::expect_no_allocation;
using op_test::GuardedTensor;
using op_test::random_tensor;

TEST(OpAllocation, TheCounterSeesAllocations) { op_test::expect_counted_allocation(); }

TEST(OpAllocation, RmsNorm) {
  for (const DType t : {DType::kFloat32, DType::kBFloat16}) {
    const GuardedTensor x = random_tensor("x", t, {300, 64});
    const GuardedTensor y(t, {300, 64});
    const GuardedTensor gain(DType::kFloat32, {64});
    const GuardedTensor rstd(DType::kFloat32, {300});
    const RmsNormPlan plan = rmsnorm_plan({.rows = 300, .cols = 64, .dtype = t});
    const op_test::Scratch scratch(plan.workspace_bytes);
    expect_no_allocation([&](Context& ctx) {
      rmsnorm_forward(ctx, plan, {.x_ND = x, .residual_ND = x, .gain_D = gain},
                      {.sum_ND = x, .y_ND = y, .rstd_N = rstd}, scratch.workspace());
      rmsnorm_backward(ctx, plan,
                       {.dy_ND = y, .sum_ND = x, .gain_D = gain, .rstd_N = rstd, .d_sum_ND = y},
                       {.dx_ND = y, .dgain_D = gain}, scratch.workspace());
    });
  }
}

TEST(OpAllocation, Swiglu) {
  const GuardedTensor x = random_tensor("x", DType::kBFloat16, {100, 64});
  const GuardedTensor y(DType::kBFloat16, {100, 32});
  const SwigluPlan plan = swiglu_plan({.rows = 100, .cols = 32, .dtype = DType::kBFloat16});
  expect_no_allocation([&](Context& ctx) {
    swiglu_forward(ctx, plan, {.gate_up_NG = x}, {.out_NF = y}, {});
    swiglu_backward(ctx, plan, {.dout_NF = y, .gate_up_NG = x}, {.d_gate_up_NG = x}, {});
  });
}

TEST(OpAllocation, EmbeddingAndResidual) {
  GuardedTensor token(DType::kInt32, {200});
  token.fill(3);
  const GuardedTensor table = random_tensor("table", DType::kFloat32, {5, 300});
  const GuardedTensor out(DType::kFloat32, {200, 300});
  const EmbeddingPlan plan = embedding_plan({.tokens = 200, .vocab = 5, .hidden = 300});
  const ResidualPlan add = residual_plan({.count = 60000});
  expect_no_allocation([&](Context& ctx) {
    embedding_forward(ctx, plan, {.token_N = token, .table_VD = table}, {.out_ND = out}, {});
    residual_forward(ctx, add, {.a = out, .b = out}, {.y = out}, {});
    embedding_backward(ctx, plan, {.token_N = token, .dout_ND = out}, {.dtable_VD = table}, {});
  });
}

TEST(OpAllocation, UpdateReduceAndConvert) {
  const std::int64_t n = 20 * kChunk;
  const GuardedTensor x = random_tensor("x", DType::kFloat32, {n});
  const GuardedTensor m = random_tensor("m", DType::kFloat32, {n});
  const GuardedTensor v = random_tensor("v", DType::kFloat32, {n}, {}, 0.1, 1);
  const GuardedTensor grad = random_tensor("grad", DType::kFloat32, {n});
  const GuardedTensor low(DType::kBFloat16, {n});
  const GuardedTensor sums(DType::kFloat64, {n / kChunk});
  const GuardedTensor first(DType::kInt64, {1});
  const ConstTensor parts = grad.tensor().view({2, n / 2});
  expect_no_allocation([&](Context& ctx) {
    adamw_update(ctx, {.grad_n = grad, .scalars = {}},
                 {.master_n = x, .m_n = m, .v_n = v, .copy_out_n = low});
    chunk_square_sums(ctx, x, sums);
    first_not_finite(ctx, x, first);
    ordered_sum(ctx, parts, x.tensor().slice(0, 0, n / 2));
    convert(ctx, x, low);
    EXPECT_GT(add_in_order(sums), 0);
  });
  EXPECT_EQ(first.get(0), n);
}

TEST(OpAllocation, Kda) {
  const DType t = DType::kBFloat16, wide = DType::kFloat32;
  const GuardedTensor x = random_tensor("x", t, {2, 70, 2, 8}), y(t, {2, 70, 2, 8});
  const GuardedTensor g = random_tensor("g", wide, {2, 70, 2, 8}, {}, -1, 0),
                      dg(wide, {2, 70, 2, 8});
  const GuardedTensor beta = random_tensor("beta", wide, {2, 70, 2}, {}, 0, 1),
                      dbeta(wide, {2, 70, 2});
  const GuardedTensor state = random_tensor("state", wide, {2, 2, 8, 8});
  GuardedTensor accepted(DType::kInt32, {2});
  accepted.fill(7);
  const KdaPlan plan = kda_plan({.batch = 2,
                                 .tokens = 70,
                                 .heads = 2,
                                 .value_heads = 2,
                                 .key_dim = 8,
                                 .value_dim = 8,
                                 .dtype = t});
  const KdaStepPlan step = kda_step_plan({.sequences = 2,
                                          .tokens = 70,
                                          .heads = 2,
                                          .value_heads = 2,
                                          .key_dim = 8,
                                          .value_dim = 8,
                                          .dtype = t});
  const op_test::Scratch scratch(plan.workspace_bytes), step_scratch(step.workspace_bytes);
  expect_no_allocation([&](Context& ctx) {
    kda_forward(ctx, plan, {x, x, x, g, beta, {}, state, {}}, {y, state, {}, {}},
                scratch.workspace());
    kda_backward(ctx, plan, {x, x, x, g, beta, {}, state, {}, x, state},
                 {y, y, y, dg, dbeta, state}, scratch.workspace());
    kda_decode(ctx, step, {x, x, x, g, beta}, {y, state}, step_scratch.workspace());
    kda_verify(ctx, step, {x, x, x, g, beta, state}, {y, dg}, step_scratch.workspace());
    kda_commit(ctx, step, {x, g, dg, accepted}, {state}, step_scratch.workspace());
  });
}

TEST(OpAllocation, AroundKda) {
  const DType t = DType::kBFloat16, wide = DType::kFloat32;
  const GuardedTensor x = random_tensor("x", t, {80, 2, 8}), y(t, {80, 2, 8});
  const GuardedTensor z(t, {80, 2, 8}), sums(wide, {80, 2}), gain(wide, {8}),
      rows(wide, {80, 2, 8});
  const GuardedTensor rates(wide, {2}), bias(wide, {2, 8}), taps(wide, {16, 4});
  const L2NormPlan norm = l2norm_plan({.rows = 80, .heads = 2, .cols = 8, .dtype = t});
  const GatedRmsNormPlan gated =
      gated_rmsnorm_plan({.rows = 80, .heads = 2, .cols = 8, .dtype = t});
  const KdaGatePlan gate = kda_gate_plan({.rows = 80, .heads = 2, .cols = 8, .dtype = t});
  const KdaBetaPlan beta = kda_beta_plan({.rows = 80, .heads = 2, .dtype = t});
  const Conv1dPlan conv = conv1d_plan({.batch = 2, .tokens = 40, .channels = 16, .dtype = t});
  const Tensor wide_x = x.tensor().view({2, 40, 16}), wide_y = y.tensor().view({2, 40, 16});
  const GuardedTensor b(t, {80, 2}), db(t, {80, 2});
  const op_test::Scratch scratch(gated.workspace_bytes), gate_scratch(gate.workspace_bytes);
  expect_no_allocation([&](Context& ctx) {
    conv1d_forward(ctx, conv, {wide_x, taps, {}, {}}, {wide_y, {}}, {});
    conv1d_backward(ctx, conv, {wide_x, wide_x, taps, {}, {}, {}}, {wide_y, taps, {}}, {});
    l2norm_forward(ctx, norm, {x}, {y, sums}, {});
    l2norm_backward(ctx, norm, {x, y, sums}, {y}, {});
    gated_rmsnorm_forward(ctx, gated, {x, x, gain}, {y, sums}, {});
    gated_rmsnorm_backward(ctx, gated, {x, x, x, gain, sums}, {y, z, gain}, scratch.workspace());
    kda_gate_forward(ctx, gate, {x, rates, bias}, {rows}, {});
    kda_gate_backward(ctx, gate, {rows, x, rates, bias}, {y, rates, bias},
                      gate_scratch.workspace());
    kda_beta_forward(ctx, beta, {b}, {sums}, {});
    kda_beta_backward(ctx, beta, {sums, b}, {db}, {});
  });
}

}  // namespace
}  // namespace k25::kernels
