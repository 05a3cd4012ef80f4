#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/kda/kda.h"
#include "tests/kernels/kda/kda_oracle.h"
#include "tests/kernels/op_test.h"

namespace k25::kda_test {
namespace {

using kernels::kda_backward;
using kernels::kda_forward;
using kernels::kda_plan;
using op_test::make_context;
using op_test::throws_error;

const ErrorKind kUsage = ErrorKind::kUsage;

void expect_no_plan(void (*change)(KdaDesc&), std::initializer_list<std::string_view> parts) {
  KdaDesc d = desc_of({.batch = 1, .tokens = 10, .heads = 2, .value_heads = 4});
  change(d);
  EXPECT_TRUE(throws_error([&] { kda_plan(d); }, kUsage, parts));
}

TEST(KdaErrors, Descriptions) {
  expect_no_plan([](KdaDesc& d) { d.tokens = -1; }, {"tokens -1", "negative"});
  expect_no_plan([](KdaDesc& d) { d.batch = -2; }, {"batch -2"});
  expect_no_plan([](KdaDesc& d) { d.tokens = std::int64_t{1} << 31; }, {"2^31"});
  expect_no_plan([](KdaDesc& d) { d.key_dim = 0; }, {"key_dim 0", "positive"});
  expect_no_plan([](KdaDesc& d) { d.value_dim = -4; }, {"value_dim -4"});
  expect_no_plan([](KdaDesc& d) { d.value_heads = 3; }, {"value_heads 3", "multiple of heads 2"});
  expect_no_plan([](KdaDesc& d) { d.heads = 0; }, {"heads 0"});
  expect_no_plan([](KdaDesc& d) { d.dtype = DType::kInt32; }, {"int32"});
  expect_no_plan([](KdaDesc& d) { d.scale = -1; }, {"scale"});
  expect_no_plan([](KdaDesc& d) { d.scale = std::nan(""); }, {"scale"});
  expect_no_plan([](KdaDesc& d) { d.checkpoints = -1; }, {"checkpoints -1"});
  expect_no_plan([](KdaDesc& d) { d.sequences = 3, d.batch = 2; },
                 {"3 packed sequences", "batch of 2"});
  expect_no_plan([](KdaDesc& d) { d.sequences = -3; }, {"-3 packed sequences"});
  expect_no_plan([](KdaDesc& d) { d.dtype = DType::kFloat32, d.device = Device::kCuda; },
                 {"on the GPU", "64 or 128"});
  expect_no_plan([](KdaDesc& d) { d.dtype = DType::kFloat64, d.device = Device::kCuda; },
                 {"fp64 runs on the CPU only"});
}

TEST(KdaErrors, PackedSequences) {
  Context ctx = make_context();
  const auto refused = [&](const std::vector<double>& border,
                           std::initializer_list<std::string_view> parts) {
    Problem p(desc_of({.tokens = 10}), constant_gate(0), {4, 6});
    p.border.set(border);
    EXPECT_TRUE(throws_error([&] { p.forward(ctx); }, kUsage, parts));
    EXPECT_TRUE(throws_error([&] { p.backward(ctx); }, kUsage, parts));
  };
  refused({1, 4, 10}, {"border 0 is 1"});
  refused({0, 4, 9}, {"border 2 is 9", "10 tokens"});
  refused({0, 4, 11}, {"border 2 is 11"});
  refused({0, 12, 10}, {"border 2 is 10", "one before is 12"});
  refused({0, -1, 10}, {"border 1 is -1", "one before is 0"});

  const Problem rows(desc_of({.tokens = 10}), constant_gate(0));
  kernels::KdaForwardIn in = rows.forward_in();
  in.borders.border_S1 = rows.border;
  const auto plan = kda_plan(rows.desc);
  const op_test::Scratch scratch(plan.workspace_bytes);
  EXPECT_TRUE(
      throws_error([&] { kda_forward(ctx, plan, in, rows.forward_out(), scratch.workspace()); },
                   kUsage, {"border_S1 needs desc.sequences"}));
}

TEST(KdaErrors, Documents) {
  Context ctx = make_context();
  const auto refused = [&](std::int64_t token, double begin, double end,
                           std::initializer_list<std::string_view> parts) {
    Problem p(desc_of({.batch = 2, .tokens = 10}), constant_gate(0), {}, {{10}, {4, 6}});
    p.doc_begin.set(10 + token, begin);
    p.doc_end.set(10 + token, end);
    EXPECT_TRUE(throws_error([&] { p.forward(ctx); }, kUsage, parts));
    EXPECT_TRUE(throws_error([&] { p.backward(ctx); }, kUsage, parts));
  };
  refused(2, 0, 5, {"row 1, token 2", "[0, 5)", "disagrees"});
  refused(4, 3, 10, {"row 1, token 4", "disagrees"});
  refused(9, 4, 11, {"row 1, token 9", "leaves the row of 10"});
  refused(0, -1, 4, {"row 1, token 0", "does not hold"});
  refused(5, 6, 10, {"row 1, token 5", "does not hold"});

  const Problem p(desc_of({.batch = 1, .tokens = 10}), constant_gate(0), {}, {{10}});
  kernels::KdaForwardIn in = p.forward_in();
  in.borders.doc_end_BT = {};
  const auto plan = kda_plan(p.desc);
  const op_test::Scratch scratch(plan.workspace_bytes);
  EXPECT_TRUE(
      throws_error([&] { kda_forward(ctx, plan, in, p.forward_out(), scratch.workspace()); },
                   kUsage, {"doc_begin and doc_end come together"}));
}

TEST(KdaErrors, Checkpoints) {
  Context ctx = make_context();
  const auto refused = [&](std::int64_t offset, std::initializer_list<std::string_view> parts) {
    const Problem p(desc_of({.batch = 2, .tokens = 100}), constant_gate(0), {}, {}, {},
                    {{64}, {offset}});
    EXPECT_TRUE(throws_error([&] { p.forward(ctx); }, kUsage, parts));
  };
  refused(63, {"sequence 1, checkpoint 0", "offset 63", "multiple of 64", "100 tokens"});
  refused(128, {"offset 128"});
  refused(-2, {"offset -2"});
  const Problem p(desc_of({.batch = 1, .tokens = 100}), constant_gate(0), {}, {{50, 50}}, {},
                  {{64}});
  EXPECT_TRUE(throws_error([&] { p.forward(ctx); }, kUsage, {"with documents there are none"}));
}

TEST(KdaErrors, Operands) {
  Context ctx = make_context();
  KdaDesc d = desc_of(
      {.batch = 1, .tokens = 130, .heads = 2, .value_heads = 4, .key_dim = 3, .value_dim = 5},
      DType::kBFloat16);
  d.keep = KdaKeep::kStates;
  const Problem p(d, constant_gate(0));
  const auto plan = kda_plan(d);
  const op_test::Scratch scratch(plan.workspace_bytes);
  const auto forward = [&](const kernels::KdaForwardIn& in, const kernels::KdaForwardOut& out) {
    return [&, in, out] { kda_forward(ctx, plan, in, out, scratch.workspace()); };
  };
  const auto backward = [&](const kernels::KdaBackwardIn& in, const kernels::KdaBackwardOut& out) {
    return [&, in, out] { kda_backward(ctx, plan, in, out, scratch.workspace()); };
  };
  auto in = p.forward_in();
  in.q_BTHK = p.v;
  EXPECT_TRUE(throws_error(forward(in, p.forward_out()), kUsage,
                           {"q_BTHK is bf16 [1, 130, 4, 5]", "expected bf16 [1, 130, 2, 3]"}));
  in = p.forward_in();
  in.g_BTMK = {};
  EXPECT_TRUE(throws_error(forward(in, p.forward_out()), kUsage, {"g_BTMK is missing"}));
  in = p.forward_in();
  in.beta_BTM = GuardedTensor(DType::kBFloat16, {1, 130, 4});
  EXPECT_TRUE(throws_error(forward(in, p.forward_out()), kUsage, {"beta_BTM is bf16", "fp32"}));
  in = p.forward_in();
  in.initial_state_SMKV = p.out;
  EXPECT_TRUE(throws_error(forward(in, p.forward_out()), kUsage,
                           {"initial_state_SMKV", "expected fp32 [1, 4, 3, 5]"}));
  auto out = p.forward_out();
  out.out_BTMV = {};
  EXPECT_TRUE(throws_error(forward(p.forward_in(), out), kUsage, {"out_BTMV is missing"}));
  out = p.forward_out();
  out.checkpoint_SNMKV = p.checkpoint;
  EXPECT_TRUE(throws_error(forward(p.forward_in(), out), kUsage, {"desc.checkpoints"}));
  auto back = p.backward_in();
  back.saved = {};
  EXPECT_TRUE(throws_error(backward(back, p.backward_out()), kUsage, {"saved is missing"}));
  back = p.backward_in();
  back.dout_BTMV = p.q;
  EXPECT_TRUE(throws_error(backward(back, p.backward_out()), kUsage, {"dout_BTMV"}));
  auto grads = p.backward_out();
  grads.dbeta_BTM = {};
  EXPECT_TRUE(throws_error(backward(p.backward_in(), grads), kUsage, {"dbeta_BTM is missing"}));
  EXPECT_TRUE(
      throws_error([&] { kda_forward(ctx, plan, p.forward_in(), p.forward_out(), {}); }, kUsage,
                   {"workspace of 0 bytes", std::to_string(plan.forward_workspace_bytes.n)}));
  EXPECT_TRUE(
      throws_error([&] { kda_backward(ctx, plan, p.backward_in(), p.backward_out(), {}); }, kUsage,
                   {"workspace of 0 bytes", std::to_string(plan.backward_workspace_bytes.n)}));
}

}  // namespace
}  // namespace k25::kda_test
