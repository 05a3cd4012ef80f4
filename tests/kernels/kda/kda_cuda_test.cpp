#include <limits>
#include <string>
#include <vector>

#include "kernels/kda/kda.h"
#include "tests/kernels/kda/kda_cuda_problem.h"

namespace k25::kda_test {
namespace {

using op_test::throws_error;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Mostly weak, so that tokens far apart still meet, now and then strong.
Gate random_gate() {
  return [](std::int64_t, double u) { return u > 0.99 ? -4 : -0.3 * u * u; };
}

using KdaCudaTest = KdaGpuTest;

TEST_F(KdaCudaTest, LengthsAroundSubChunkAndChunk) {
  for (const std::int64_t tokens : {0, 1, 2, 15, 16, 17, 31, 33, 48, 63, 64, 65, 128, 150}) {
    SCOPED_TRACE(tokens);
    expect_right(desc_of({.tokens = tokens, .key_dim = 64, .value_dim = 64}, DType::kFloat32),
                 random_gate());
  }
}

TEST_F(KdaCudaTest, HeadDimensionsGroupsAndDTypes) {
  for (const DType dtype : op_test::kGpuFloats) {
    for (const std::int64_t key : {64, 128}) {
      for (const std::int64_t value : {64, 128}) {
        SCOPED_TRACE(std::to_string(key) + " x " + std::to_string(value) + " " +
                     std::string(dtype_name(dtype)));
        expect_right(desc_of({.batch = 2,
                              .tokens = 70,
                              .heads = 2,
                              .value_heads = key == value ? 4 : 2,
                              .key_dim = key,
                              .value_dim = value},
                             dtype),
                     random_gate());
      }
    }
  }
}

TEST_F(KdaCudaTest, EveryStrengthOfTheGate) {
  for (const auto& [name, gate] : gates()) {
    for (const std::int64_t tokens : {17, 130}) {
      SCOPED_TRACE(std::string(name) + ", tokens " + std::to_string(tokens));
      expect_right(desc_of({.tokens = tokens, .key_dim = 64, .value_dim = 64}, DType::kFloat32),
                   gate);
    }
  }
}

TEST_F(KdaCudaTest, NearlyCollinearKeys) {
  for (const double own : {0.3, 0.1, 0.0}) {
    Problem p(desc_of({.tokens = 200, .key_dim = 64, .value_dim = 64}, DType::kFloat32),
              constant_gate(0));
    std::vector<double> k = p.k.get();
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = k[i % 64] + own * (k[i] - k[i % 64]);
    p.k.set(k);
    p.beta.set(op_test::random_values("near one", p.beta.count(), 0.99, 1.0));
    run(p, Direction::kForward);
    const Naive expected = p.naive<double>();
    EXPECT_TRUE(op_test::all_near(p.out.get(), expected.out, 1e-5));
    EXPECT_TRUE(op_test::all_near(p.final.get(), expected.final, 1e-5));
  }
}

TEST_F(KdaCudaTest, PackedSequences) {
  for (const Lengths& lengths :
       std::vector<Lengths>{{0, 1, 0, 64, 5, 65, 0}, {130}, Lengths(20, 1), {0}}) {
    std::int64_t tokens = 0;
    for (const std::int64_t n : lengths) tokens += n;
    expect_right(
        desc_of({.tokens = tokens, .heads = 1, .value_heads = 2, .key_dim = 64, .value_dim = 64},
                DType::kFloat32),
        random_gate(), lengths);
  }
}

TEST_F(KdaCudaTest, Documents) {
  const Shape shape{.batch = 2, .tokens = 138, .key_dim = 64, .value_dim = 64};
  for (const KdaKeep keep : {KdaKeep::kNothing, KdaKeep::kStates}) {
    KdaDesc d = desc_of(shape, DType::kFloat32);
    d.keep = keep;
    expect_right(d, random_gate(), {}, {{1, 70, 64, 3}, {138}});
    expect_right(d, random_gate(), {}, {{64, 74}, {5, 133}});
  }
}

TEST_F(KdaCudaTest, TwoRunsKeptStatesAndLayoutsChangeNoBit) {
  for (const DType dtype : op_test::kGpuFloats) {
    std::vector<std::uint8_t> first;
    for (const KdaKeep keep : {KdaKeep::kNothing, KdaKeep::kNothing, KdaKeep::kStates}) {
      for (const Layout layout : {Layout{}, Layout{.row_padding = 3, .shift = 1}}) {
        KdaDesc d = desc_of({.batch = 2,
                             .tokens = 150,
                             .heads = 1,
                             .value_heads = 2,
                             .key_dim = 64,
                             .value_dim = 128},
                            dtype);
        d.keep = keep;
        const Problem p(d, random_gate(), {}, {}, layout);
        run(p);
        if (first.empty()) first = p.bits();
        EXPECT_EQ(p.bits(), first);
      }
    }
  }
}

/// Fills what belongs to the tokens [from, to) of the only row, and to sequence s, with NaN.
void plant_nan(Problem& p, std::int64_t from, std::int64_t to, std::int64_t s) {
  for (GuardedTensor* t : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.dout}) {
    const std::int64_t per = t->count() / p.desc.tokens;
    for (std::int64_t i = from * per; i < to * per; ++i) t->set(i, kNan);
  }
  for (GuardedTensor* t : {&p.initial, &p.dfinal}) {
    const std::int64_t per = t->count() / p.sequences;
    for (std::int64_t i = s * per; i < (s + 1) * per; ++i) t->set(i, kNan);
  }
}

TEST_F(KdaCudaTest, ANeighboursNanStaysThere) {
  const Lengths lengths{37, 70, 20};
  const KdaDesc d = desc_of({.tokens = 127, .key_dim = 64, .value_dim = 64}, DType::kBFloat16);
  const Problem clean(d, random_gate(), lengths);
  run(clean);
  Problem p(d, random_gate(), lengths);
  plant_nan(p, 0, 37, 0);
  plant_nan(p, 107, 127, 2);
  run(p);
  for (std::size_t i = 0; i < p.results().size(); ++i) {
    const GuardedTensor &ours = *p.results()[i], &wanted = *clean.results()[i];
    if (ours.count() == 0) continue;
    const bool state = &ours == &p.final || &ours == &p.dinitial;
    const std::int64_t per = ours.count() / (state ? 3 : 127);
    for (std::int64_t e = (state ? 1 : 37) * per; e < (state ? 2 : 107) * per; ++e) {
      ASSERT_EQ(ours.get(e), wanted.get(e)) << "result " << i << ", element " << e;
    }
  }
}

TEST_F(KdaCudaTest, ANanReachesNoEarlierOutput) {
  const KdaDesc d = desc_of({.tokens = 100, .key_dim = 64, .value_dim = 64}, DType::kFloat32);
  const Problem clean(d, random_gate());
  run(clean, Direction::kForward);
  for (const std::int64_t bad : {5, 40, 63, 64, 99}) {
    Problem p(d, random_gate());
    for (GuardedTensor* t : {&p.q, &p.k, &p.v, &p.g, &p.beta}) {
      const std::int64_t per = t->count() / 100;
      for (std::int64_t i = bad * per; i < (bad + 1) * per; ++i) t->set(i, kNan);
    }
    run(p, Direction::kForward);
    for (std::int64_t i = 0; i < bad * 64; ++i) ASSERT_EQ(p.out.get(i), clean.out.get(i));
    EXPECT_NE(p.out.get(bad * 64), p.out.get(bad * 64));
  }
}

TEST_F(KdaCudaTest, ACheckpointIsTheFinalStateOfThePrefix) {
  const KdaDesc d =
      desc_of({.tokens = 220, .value_heads = 2, .key_dim = 64, .value_dim = 128}, DType::kFloat32);
  const Problem p(d, random_gate(), {150, 0, 70}, {}, {},
                  {{64, 150, 0}, {0, -1, -1}, {64, -1, 70}});
  run(p, Direction::kForward);
  const std::int64_t size = 2 * 64 * 128;
  const auto expect_state = [&](std::int64_t s, std::int64_t i, const Problem& from,
                                std::int64_t of) {
    for (std::int64_t e = 0; e < size; ++e) {
      ASSERT_EQ(p.checkpoint.get((s * 3 + i) * size + e), from.final.get(of * size + e));
    }
  };
  expect_state(0, 1, p, 0);
  expect_state(1, 0, p, 1);
  expect_state(2, 2, p, 2);
  for (std::int64_t e = 0; e < size; ++e) {
    ASSERT_EQ(p.checkpoint.get(2 * size + e), p.initial.get(e));  // offset 0
  }
  KdaDesc prefix = d;
  prefix.tokens = 64;
  Problem alone(prefix, random_gate(), {64});
  for (const auto& [to, from] : {std::pair{&alone.q, &p.q},
                                 {&alone.k, &p.k},
                                 {&alone.v, &p.v},
                                 {&alone.g, &p.g},
                                 {&alone.beta, &p.beta},
                                 {&alone.initial, &p.initial}}) {
    const std::vector<double> all = from->get();
    to->set(std::vector<double>(all.begin(), all.begin() + to->count()));
  }
  run(alone, Direction::kForward);
  expect_state(0, 0, alone, 0);
}

TEST_F(KdaCudaTest, AbsentStatesAreZeroAndTheFinalMayOverwriteTheInitialOne) {
  const KdaDesc d = desc_of({.tokens = 70, .key_dim = 64, .value_dim = 64}, DType::kFloat32);
  Problem zero(d, random_gate());
  const Problem absent(d, random_gate()), apart(d, random_gate()), in_place(d, random_gate());
  zero.initial.fill(0);
  zero.dfinal.fill(0);
  run(zero);
  const GpuProblem on_gpu(gpu(), absent);
  const kernels::KdaPlan plan = on_gpu.plan();
  const GpuScratch scratch(gpu(), plan.workspace_bytes);
  kernels::KdaForwardIn in = on_gpu.forward_in();
  in.initial_state_SMKV = {};
  kernels::kda_forward(gpu(), plan, in, {.out_BTMV = on_gpu.out}, scratch.workspace());
  kernels::KdaBackwardIn back = on_gpu.backward_in();
  back.initial_state_SMKV = back.dfinal_state_SMKV = {};
  kernels::KdaBackwardOut grads = on_gpu.backward_out();
  grads.dinitial_state_SMKV = {};
  kernels::kda_backward(gpu(), plan, back, grads, scratch.workspace());
  EXPECT_EQ(on_gpu.out.fetch().bits(), zero.out.bits());
  EXPECT_EQ(on_gpu.dk.fetch().bits(), zero.dk.bits());
  EXPECT_EQ(on_gpu.dg.fetch().bits(), zero.dg.bits());

  run(apart, Direction::kForward);
  const GpuProblem over(gpu(), in_place);
  kernels::kda_forward(gpu(), plan, over.forward_in(),
                       {.out_BTMV = over.out, .final_state_SMKV = over.initial},
                       scratch.workspace());
  EXPECT_EQ(over.initial.fetch().bits(), apart.final.bits());
  EXPECT_EQ(over.out.fetch().bits(), apart.out.bits());
}

TEST_F(KdaCudaTest, WrongBordersTouchNothingForeign) {
  const KdaDesc d = desc_of({.tokens = 80, .key_dim = 64, .value_dim = 64}, DType::kFloat32);
  for (const auto& borders :
       std::vector<std::vector<double>>{{-5, 1000, 80}, {70, 3, 2}, {2e9, -2e9, 2e9}}) {
    Problem p(d, random_gate(), {10, 70});
    p.border.set(borders);
    run(p);  // which looks at the guard bands
  }
  Problem p(d, random_gate(), {}, {{10, 70}});
  p.doc_begin.fill(-7);
  p.doc_end.fill(1e9);
  run(p);
  p.doc_begin.fill(1e9);
  p.doc_end.fill(-7);
  run(p);
}

TEST_F(KdaCudaTest, RefusesWhatDoesNotFit) {
  const ErrorKind usage = ErrorKind::kUsage;
  const auto no_plan = [&](KdaDesc d, std::initializer_list<std::string_view> parts) {
    d.device = Device::kCuda;
    EXPECT_TRUE(throws_error([&] { kernels::kda_plan(d); }, usage, parts));
  };
  const Shape shape{.tokens = 4, .key_dim = 64, .value_dim = 64};
  no_plan(desc_of(shape, DType::kFloat64), {"fp64 runs on the CPU only"});
  no_plan(desc_of(shape, DType::kFloat32, KdaForm::kRecurrent), {"recurrent form", "CPU only"});
  no_plan(desc_of({.tokens = 4, .key_dim = 32, .value_dim = 64}, DType::kFloat32),
          {"key_dim 32", "64 or 128"});
  no_plan(desc_of({.tokens = 4, .key_dim = 64, .value_dim = 96}, DType::kFloat32),
          {"value_dim 96", "64 or 128"});
  const Problem p(desc_of(shape, DType::kFloat32), random_gate());
  const GpuProblem on_gpu(gpu(), p);
  kernels::KdaForwardIn in = on_gpu.forward_in();
  in.g_BTMK = p.g;
  EXPECT_TRUE(throws_error(
      [&] { kernels::kda_forward(gpu(), on_gpu.plan(), in, on_gpu.forward_out(), {}); }, usage,
      {"g_BTMK is in host memory"}));
  EXPECT_TRUE(throws_error(
      [&] {
        kernels::kda_forward(gpu(), on_gpu.plan(), on_gpu.forward_in(), on_gpu.forward_out(), {});
      },
      usage, {"workspace of 0 bytes"}));
}

}  // namespace
}  // namespace k25::kda_test
