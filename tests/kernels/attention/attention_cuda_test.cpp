// Attention on the GPU: against the formula in fp64, against the CPU, and bit by bit against
// itself.
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "tests/kernels/attention/attention_gpu_problem.h"
#include "tests/kernels/cuda_test.h"

namespace k25::attention_test {
namespace {

using kernels::attention_plan;
using op_test::all_near;
using op_test::low_precision_near;
using op_test::OnGpu;
using op_test::throws_error;
using AttentionCudaTest = op_test::CudaTest;

/// GPU results against fp64 and against the CPU, both directions.
template <class Low>
void expect_near(Context& cpu, Context& gpu, const AttentionDesc& desc, const Documents& documents,
                 double floor, Layout layout = {}) {
  SCOPED_TRACE(std::string(dtype_name(desc.dtype)) + " T " + std::to_string(desc.tokens) + " H " +
               std::to_string(desc.heads) + "/" + std::to_string(desc.kv_heads) + " E " +
               std::to_string(desc.head_dim) +
               (desc.masking == Masking::kCausal ? " causal" : " bidirectional"));
  Problem p(desc, documents, layout), twin(desc, documents);
  run_on_gpu(gpu, p);
  twin.forward(cpu);
  twin.backward(cpu);
  const Naive low = p.naive<Low>(), ref = p.naive<double>();
  EXPECT_TRUE(low_precision_near(p.out.get(), low.out, ref.out, floor));
  EXPECT_TRUE(low_precision_near(p.lse.get(), low.lse, ref.lse, floor));
  EXPECT_TRUE(low_precision_near(p.dq.get(), low.dq, ref.dq, floor));
  EXPECT_TRUE(low_precision_near(p.dk.get(), low.dk, ref.dk, floor));
  EXPECT_TRUE(low_precision_near(p.dv.get(), low.dv, ref.dv, floor));
  EXPECT_TRUE(low_precision_near(p.out.get(), low.out, twin.out.get(), floor));
  EXPECT_TRUE(low_precision_near(p.lse.get(), low.lse, twin.lse.get(), floor));
  EXPECT_TRUE(low_precision_near(p.dq.get(), low.dq, twin.dq.get(), floor));
  EXPECT_TRUE(low_precision_near(p.dk.get(), low.dk, twin.dk.get(), floor));
  EXPECT_TRUE(low_precision_near(p.dv.get(), low.dv, twin.dv.get(), floor));
  EXPECT_TRUE(p.guards_intact());
}

void expect_near(Context& cpu, Context& gpu, AttentionDesc desc, const Documents& documents,
                 Layout layout = {}) {
  desc.dtype = DType::kFloat32;
  expect_near<float>(cpu, gpu, desc, documents, 2e-6, layout);
  desc.dtype = DType::kBFloat16;
  expect_near<op_test::NaiveBf16>(cpu, gpu, desc, documents, 1e-4, layout);
}

// Two tokens, one head, E = 1: query 1 sees scores 0 and log 3, so p = (1/4, 3/4).
TEST_F(AttentionCudaTest, HandComputed) {
  AttentionDesc d = desc_of(1, 2, 1, 1, 1, DType::kFloat32);
  d.scale = 1.0;
  Problem p(d, {});
  p.q.set({5.0, 1.0});
  p.k.set({0.0, std::log(3.0)});
  p.v.set({8.0, 4.0});
  p.dout.set({0.0, 1.0});
  run_on_gpu(gpu(), p);
  EXPECT_TRUE(all_near(p.out.get(), {8.0, 5.0}, 1e-6));
  EXPECT_TRUE(all_near(p.lse.get(), {0.0, std::log(4.0)}, 1e-6));
  EXPECT_TRUE(all_near(p.dq.get(), {0.0, -0.75 * std::log(3.0)}, 1e-6));
  EXPECT_TRUE(all_near(p.dk.get(), {0.75, -0.75}, 1e-6));
  EXPECT_TRUE(all_near(p.dv.get(), {0.25, 0.75}, 1e-6));
}

TEST_F(AttentionCudaTest, TokenCountsAroundTheTiles) {
  for (const Masking masking : {Masking::kCausal, Masking::kBidirectional}) {
    for (const std::int64_t tokens : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200}) {
      expect_near(cpu(), gpu(), desc_of(1, tokens, 2, 1, 16, DType::kFloat32, masking), {});
    }
    // Three tiles of each kernel, at each of its head dimensions.
    for (const std::int64_t dim : {64, 128, 256}) {
      expect_near(cpu(), gpu(), desc_of(1, 270, 1, 1, dim, DType::kFloat32, masking), {});
    }
  }
}

TEST_F(AttentionCudaTest, HeadDimensions) {
  for (const std::int64_t dim : {1, 3, 8, 17, 32, 63, 64, 65, 96, 127, 128, 129, 192, 255, 256}) {
    expect_near(cpu(), gpu(), desc_of(1, 70, 2, 2, dim), {});
  }
}

TEST_F(AttentionCudaTest, HeadGroups) {
  for (const auto& [heads, kv_heads] : {std::pair{3, 3}, {4, 1}, {8, 2}, {1, 1}}) {
    expect_near(cpu(), gpu(), desc_of(2, 90, heads, kv_heads, 24), {});
  }
}

TEST_F(AttentionCudaTest, DocumentsOfEveryLength) {
  const std::vector<Documents> cases = {
      {std::vector<std::int64_t>(300, 1), {300}},
      {{1, 64, 5, 128, 102}, {64, 6, 230}},
      {{3, 65, 129, 100, 3}, {133, 36, 131}},
  };
  for (const Masking masking : {Masking::kCausal, Masking::kBidirectional}) {
    for (const Documents& documents : cases) {
      expect_near(cpu(), gpu(), desc_of(2, 300, 2, 1, 8, DType::kFloat32, masking), documents,
                  {3, 1});
      expect_near(cpu(), gpu(), desc_of(2, 300, 2, 1, 128, DType::kFloat32, masking), documents);
    }
  }
}

// More tokens than one pass of the block that lists tiles, more tiles than slots.
TEST_F(AttentionCudaTest, ManyDocuments) {
  std::vector<std::int64_t> lengths;
  std::int64_t left = 2500;
  for (std::int64_t n = 1; left > 0; n = n % 37 + 1) {
    lengths.push_back(std::min(n, left));
    left -= lengths.back();
  }
  expect_near(cpu(), gpu(), desc_of(1, 2500, 1, 1, 8), {lengths});
}

TEST_F(AttentionCudaTest, NothingToDo) {
  for (const auto& [batch, tokens] : {std::pair{0, 5}, {2, 0}}) {
    Problem p(desc_of(batch, tokens, 2, 1, 4, DType::kBFloat16), {});
    EXPECT_EQ(attention_plan(on_gpu(p.desc)).workspace_bytes.n, 0);
    run_on_gpu(gpu(), p);
    EXPECT_TRUE(p.guards_intact());
  }
}

// Scores of +-1000 overflow exp without the running maximum.
TEST_F(AttentionCudaTest, LargeScores) {
  AttentionDesc d = desc_of(1, 84, 1, 1, 4, DType::kFloat32);
  d.scale = 300.0;
  Problem p(d, {});
  run_on_gpu(gpu(), p);
  const Naive low = p.naive<float>(), ref = p.naive<double>();
  EXPECT_TRUE(low_precision_near(p.out.get(), low.out, ref.out, 1e-6));
  EXPECT_TRUE(low_precision_near(p.lse.get(), low.lse, ref.lse, 1e-6));
  EXPECT_TRUE(low_precision_near(p.dv.get(), low.dv, ref.dv, 1e-6));
  EXPECT_TRUE(low_precision_near(p.dk.get(), low.dk, ref.dk, 1e-4));
}

// A second run, rows that are no whole vectors, and a misaligned start leave every bit alone.
TEST_F(AttentionCudaTest, BitsDoNotDependOnRunOrAlignment) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t dim : {64, 128, 256}) {
      const AttentionDesc d = desc_of(2, 310, 4, 2, dim, dtype);
      const Documents documents(2, {1, 200, 109});
      Problem one(d, documents), two(d, documents), shifted(d, documents, {7, 3});
      for (Problem* p : {&one, &two, &shifted}) run_on_gpu(gpu(), *p);
      EXPECT_EQ(all_bits(one), all_bits(two));
      EXPECT_EQ(all_bits(one), all_bits(shifted));
      EXPECT_TRUE(shifted.guards_intact());
    }
  }
}

TEST_F(AttentionCudaTest, BadPlans) {
  const auto refused = [](AttentionDesc d, std::string_view part) {
    return throws_error([&] { attention_plan(on_gpu(d)); }, ErrorKind::kUsage, {"attention", part});
  };
  EXPECT_TRUE(refused(desc_of(1, 4, 1, 1, 8, DType::kFloat64), "fp64 runs on the CPU only"));
  EXPECT_TRUE(refused(desc_of(1, 4, 1, 1, 257, DType::kBFloat16), "head_dim 257"));
  EXPECT_TRUE(refused(desc_of(1, 1 << 30 | 1, 1, 1, 8, DType::kBFloat16), "2^30 tokens"));
  EXPECT_TRUE(refused(desc_of(1 << 20, 1 << 20, 8, 1, 8, DType::kBFloat16), "smaller batch"));
}

TEST_F(AttentionCudaTest, MixedDevices) {
  Problem p(desc_of(2, 6, 4, 2, 8, DType::kFloat32), {{6}, {6}});
  const auto plan = attention_plan(on_gpu(p.desc));
  const op_test::GpuScratch scratch(gpu(), plan.workspace_bytes);
  const OnGpu q(gpu(), p.q), k(gpu(), p.k), v(gpu(), p.v), out(gpu(), p.out), lse(gpu(), p.lse);
  const OnGpu begin(gpu(), p.doc_begin), end(gpu(), p.doc_end);
  const auto refused = [&](const kernels::AttentionForwardIn& in,
                           const kernels::AttentionForwardOut& o, std::string_view name) {
    return throws_error(
        [&] { kernels::attention_forward(gpu(), plan, in, o, scratch.workspace()); },
        ErrorKind::kUsage, {"attention", name, "host memory"});
  };
  EXPECT_TRUE(refused({p.q, k, v, begin, end}, {out, lse}, "q "));
  EXPECT_TRUE(refused({q, k, p.v, begin, end}, {out, lse}, "v "));
  EXPECT_TRUE(refused({q, k, v, begin, p.doc_end}, {out, lse}, "doc_end "));
  EXPECT_TRUE(refused({q, k, v, begin, end}, {p.out, lse}, "out "));
  EXPECT_TRUE(refused({q, k, v, begin, end}, {out, p.lse}, "lse "));
}

// Borders that contradict each other: refused on the host, NaN on the GPU, for that sequence alone.
TEST_F(AttentionCudaTest, BadDocuments) {
  const std::int32_t far = std::numeric_limits<std::int32_t>::max();
  const std::vector<std::array<std::int32_t, 3>> cases = {
      {3, 4, 6}, {3, 2, 3}, {0, -1, 2}, {5, 2, 7}, {4, 3, 6}, {0, -far, far}, {150, -5, far}};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const auto& [t, begin, end] : cases) {
      const AttentionDesc d = desc_of(2, 200, 2, 1, 8, dtype);
      const Documents documents = {{2, 4, 194}, {200}};
      Problem p(d, documents), good(d, documents);
      p.doc_begin.set(t, begin);
      p.doc_end.set(t, end);
      EXPECT_TRUE(
          throws_error([&] { kernels::attention_check_documents(d, p.doc_begin, p.doc_end); },
                       ErrorKind::kUsage, {"attention", "sequence 0, token " + std::to_string(t)}));
      run_on_gpu(gpu(), p);
      run_on_gpu(gpu(), good);
      for (const auto& [bad, fine] : {std::pair{&p.out, &good.out},
                                      {&p.lse, &good.lse},
                                      {&p.dq, &good.dq},
                                      {&p.dk, &good.dk},
                                      {&p.dv, &good.dv}}) {
        for (std::int64_t i = 0; i < bad->count(); ++i) {
          if (i < bad->count() / 2) {
            ASSERT_TRUE(std::isnan(bad->get(i))) << i;
          } else {
            ASSERT_EQ(bad->get(i), fine->get(i)) << i;
          }
        }
      }
      EXPECT_TRUE(p.guards_intact());
    }
  }
}

}  // namespace
}  // namespace k25::attention_test
