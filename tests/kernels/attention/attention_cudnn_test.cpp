// Attention through cuDNN: against the formula in fp64, against the CPU and our own kernels, and
// bit by bit against itself.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_engines.h"
#include "tests/kernels/attention/attention_gpu_problem.h"
#include "tests/kernels/cuda_test.h"

namespace k25::attention_test {
namespace {

using kernels::attention_plan;
using kernels::AttentionImplementation;
using op_test::all_near;
using op_test::low_precision_near;
using op_test::OnGpu;
using op_test::throws_error;

AttentionDesc cudnn_desc(std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                         std::int64_t kv_heads, std::int64_t head_dim) {
  AttentionDesc d = desc_of(batch, tokens, heads, kv_heads, head_dim, DType::kBFloat16);
  d.implementation = AttentionImplementation::kCudnn;
  return d;
}

/// With a table of engines. cuDNN is used on compute capability 9.0 alone.
class AttentionCudnnTest : public op_test::CudaTest {
 protected:
  void SetUp() override {
    op_test::CudaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    gpu().attention_engines = &engines_;
    if (major != 9 || minor != 0) {
      Problem p(cudnn_desc(1, 128, 1, 1, 64), {});
      ASSERT_TRUE(throws_error([&] { run_on_gpu(gpu(), p); }, ErrorKind::kUsage, {"cuDNN"}));
      GTEST_SKIP() << "no GPU of compute capability 9.0";
    }
  }

  /// cuDNN's results against fp64 and the CPU, both directions.
  void expect_near(const AttentionDesc& desc, const Documents& documents, Layout layout = {}) {
    SCOPED_TRACE("B " + std::to_string(desc.batch) + " T " + std::to_string(desc.tokens) + " H " +
                 std::to_string(desc.heads) + "/" + std::to_string(desc.kv_heads) + " E " +
                 std::to_string(desc.head_dim) + (documents.empty() ? "" : " with documents"));
    Problem p(desc, documents, layout), twin(desc, documents);
    p.lse = GuardedTensor(p.lse_type(), {desc.batch, desc.heads, desc.tokens});
    run_on_gpu(gpu(), p);
    twin.forward(cpu());
    twin.backward(cpu());
    const Naive low = p.naive<op_test::NaiveBf16>(), ref = p.naive<double>();
    constexpr double kFloor = 1e-4;
    EXPECT_TRUE(low_precision_near(p.out.get(), low.out, ref.out, kFloor));
    EXPECT_TRUE(low_precision_near(p.lse.get(), low.lse, ref.lse, kFloor));
    EXPECT_TRUE(low_precision_near(p.dq.get(), low.dq, ref.dq, kFloor));
    EXPECT_TRUE(low_precision_near(p.dk.get(), low.dk, ref.dk, kFloor));
    EXPECT_TRUE(low_precision_near(p.dv.get(), low.dv, ref.dv, kFloor));
    EXPECT_TRUE(low_precision_near(p.out.get(), low.out, twin.out.get(), kFloor));
    EXPECT_TRUE(low_precision_near(p.lse.get(), low.lse, twin.lse.get(), kFloor));
    EXPECT_TRUE(low_precision_near(p.dq.get(), low.dq, twin.dq.get(), kFloor));
    EXPECT_TRUE(low_precision_near(p.dk.get(), low.dk, twin.dk.get(), kFloor));
    EXPECT_TRUE(low_precision_near(p.dv.get(), low.dv, twin.dv.get(), kFloor));
    EXPECT_TRUE(p.guards_intact());
  }

  kernels::AttentionEngines& engines() { return engines_; }

 private:
  kernels::AttentionEngines engines_;
};

TEST_F(AttentionCudnnTest, TokenCountsAroundTheTiles) {
  for (const std::int64_t tokens : {2, 31, 64, 65, 127, 128, 129, 333}) {
    for (const std::int64_t dim : {64, 128}) expect_near(cudnn_desc(2, tokens, 2, 1, dim), {});
  }
}

TEST_F(AttentionCudnnTest, HeadDimensions) {
  for (const std::int64_t dim : {8, 40, 96, 192, 256}) {
    expect_near(cudnn_desc(1, 130, 2, 2, dim), {});
  }
}

TEST_F(AttentionCudnnTest, HeadGroups) {
  for (const auto& [heads, kv_heads] : {std::pair{3, 3}, {4, 1}, {8, 2}, {1, 1}, {6, 2}}) {
    expect_near(cudnn_desc(2, 150, heads, kv_heads, 64), {});
  }
}

TEST_F(AttentionCudnnTest, DocumentsOfEveryLength) {
  const std::vector<Documents> cases = {
      {std::vector<std::int64_t>(300, 1), {300}},
      {{1, 64, 5, 128, 102}, {64, 6, 230}},
      {{3, 65, 129, 100, 3}, {133, 36, 131}},
      {{299, 1}, {1, 299}},
  };
  for (const Documents& documents : cases) {
    expect_near(cudnn_desc(2, 300, 2, 1, 64), documents);
    expect_near(cudnn_desc(2, 300, 4, 2, 128), documents);
  }
}

TEST_F(AttentionCudnnTest, GapsBetweenRows) {
  expect_near(cudnn_desc(2, 300, 4, 2, 64), {{3, 65, 129, 100, 3}, {133, 36, 131}}, {8, 8});
  expect_near(cudnn_desc(3, 129, 2, 2, 128), {}, {24, 16});
}

/// q, k and v beside each other in each row, as a model keeps them.
struct Interleaved {
  GuardedTensor rows;
  std::int64_t batch, heads, kv_heads, dim;

  explicit Interleaved(const AttentionDesc& d)
      : rows(d.dtype, {d.batch * d.tokens, (d.heads + 2 * d.kv_heads) * d.head_dim}),
        batch(d.batch),
        heads(d.heads),
        kv_heads(d.kv_heads),
        dim(d.head_dim) {}

  /// Part 0, 1 or 2 of `from` as [B, T, heads, E].
  Tensor part(const Tensor& from, int which) const {
    const std::int64_t first = which == 0 ? 0 : heads + (which - 1) * kv_heads;
    const std::int64_t count = which == 0 ? heads : kv_heads;
    return from.slice(1, first * dim, (first + count) * dim)
        .split_dim(1, count, dim)
        .split_dim(0, batch, from.dim(0) / batch);
  }
  void fill(int which, const GuardedTensor& plain) {
    const std::int64_t row = plain.count() / rows.tensor().dim(0);
    const std::int64_t first = which == 0 ? 0 : (heads + (which - 1) * kv_heads) * dim;
    for (std::int64_t i = 0; i < plain.count(); ++i) {
      rows.set(i / row * rows.tensor().dim(1) + first + i % row, plain.get(i));
    }
  }
};

// The same bits as with tensors of their own, and nothing beside the gradients is written.
TEST_F(AttentionCudnnTest, InterleavedOperands) {
  const AttentionDesc d = cudnn_desc(2, 333, 4, 2, 128);
  const Documents documents = {{100, 1, 232}, {333}};
  Problem p(d, documents);
  run_on_gpu(gpu(), p);
  Interleaved qkv(d), gradients(d);
  const GuardedTensor* const parts[] = {&p.q, &p.k, &p.v};
  for (int i = 0; i < 3; ++i) qkv.fill(i, *parts[i]);

  const auto plan = attention_plan(on_gpu(d));
  const op_test::GpuScratch scratch(gpu(), plan.workspace_bytes);
  GuardedTensor out(d.dtype, {2, 333, 4, 128}), lse(DType::kFloat32, {2, 4, 333});
  const OnGpu wide(gpu(), qkv.rows), wide_gradients(gpu(), gradients.rows);
  const OnGpu on_out(gpu(), out), on_lse(gpu(), lse), dout(gpu(), p.dout);
  const OnGpu begin(gpu(), p.doc_begin), end(gpu(), p.doc_end);
  const Tensor x = wide, dx = wide_gradients;
  kernels::attention_forward(gpu(), plan,
                             {qkv.part(x, 0), qkv.part(x, 1), qkv.part(x, 2), begin, end},
                             {on_out, on_lse}, scratch.workspace());
  kernels::attention_backward(
      gpu(), plan,
      {qkv.part(x, 0), qkv.part(x, 1), qkv.part(x, 2), begin, end, on_out, on_lse, dout},
      {qkv.part(dx, 0), qkv.part(dx, 1), qkv.part(dx, 2)}, scratch.workspace());
  for (const OnGpu* t : {&wide, &wide_gradients, &on_out, &on_lse}) t->fetch();
  EXPECT_EQ(out.get(), p.out.get());
  EXPECT_EQ(lse.get(), p.lse.get());
  Interleaved expected(d);
  const GuardedTensor* const results[] = {&p.dq, &p.dk, &p.dv};
  for (int i = 0; i < 3; ++i) expected.fill(i, *results[i]);
  EXPECT_EQ(gradients.rows.get(), expected.rows.get());
  EXPECT_TRUE(qkv.rows.guards_intact());
  EXPECT_TRUE(gradients.rows.guards_intact());
  EXPECT_TRUE(out.guards_intact());
  EXPECT_TRUE(lse.guards_intact());
}

TEST_F(AttentionCudnnTest, BitsDoNotDependOnTheRun) {
  for (const std::int64_t dim : {64, 128}) {
    for (const std::int64_t kv_heads : {2, 8}) {
      const AttentionDesc d = cudnn_desc(2, 1000, 8, kv_heads, dim);
      const Documents documents(2, {1, 700, 299});
      Problem first(d, documents);
      run_on_gpu(gpu(), first);
      for (int i = 0; i < 4; ++i) {
        Problem again(d, documents);
        run_on_gpu(gpu(), again);
        ASSERT_EQ(all_bits(first), all_bits(again));
      }
    }
  }
}

TEST_F(AttentionCudnnTest, LikeOurOwnKernels) {
  const AttentionDesc d = cudnn_desc(2, 700, 4, 2, 128);
  AttentionDesc other = d;
  other.implementation = AttentionImplementation::kOwn;
  const Documents documents = {{100, 1, 599}, {700}};
  Problem cudnn(d, documents), own(other, documents);
  run_on_gpu(gpu(), cudnn);
  run_on_gpu(gpu(), own);
  EXPECT_TRUE(all_near(cudnn.lse.get(), own.lse.get(), 1e-3));
  EXPECT_TRUE(all_near(cudnn.out.get(), own.out.get(), 3e-2));
  EXPECT_TRUE(all_near(cudnn.dq.get(), own.dq.get(), 1e-1));
  EXPECT_TRUE(all_near(cudnn.dk.get(), own.dk.get(), 1e-1));
  EXPECT_TRUE(all_near(cudnn.dv.get(), own.dv.get(), 1e-1));
}

// The backward pass takes six equal sequences in more than one piece: all have the same bits.
TEST_F(AttentionCudnnTest, PiecesOfTheBatch) {
  const std::int64_t batch = 6;
  const AttentionDesc d = cudnn_desc(batch, 2048, 64, 64, 8);
  const auto bytes = attention_plan(on_gpu(d)).workspace_bytes.n;
  AttentionDesc single = d;
  single.batch = 1;
  ASSERT_LT(bytes, batch * attention_plan(on_gpu(single)).workspace_bytes.n);
  Problem p(d, Documents(static_cast<std::size_t>(batch), {1000, 1048}));
  for (GuardedTensor* t : {&p.q, &p.k, &p.v, &p.dout}) {
    const std::int64_t each = t->count() / batch;
    for (std::int64_t i = each; i < t->count(); ++i) t->set(i, t->get(i % each));
  }
  run_on_gpu(gpu(), p);
  for (const GuardedTensor* t : {&p.out, &p.lse, &p.dq, &p.dk, &p.dv}) {
    const auto all = t->get();
    const auto each = static_cast<std::ptrdiff_t>(all.size()) / batch;
    for (std::ptrdiff_t b = 1; b < batch; ++b) {
      ASSERT_TRUE(std::equal(all.begin(), all.begin() + each, all.begin() + b * each)) << b;
    }
    ASSERT_TRUE(std::none_of(all.begin(), all.end(), [](double x) { return std::isnan(x); }));
  }
  EXPECT_TRUE(p.guards_intact());
}

// Long causal sequences go to cuDNN where there is a table, and engines are kept.
TEST_F(AttentionCudnnTest, TheAutomaticChoice) {
  const auto bits_of = [&](std::int64_t tokens, AttentionImplementation implementation) {
    AttentionDesc d = cudnn_desc(1, tokens, 2, 1, 64);
    d.implementation = implementation;
    Problem p(d, {});
    run_on_gpu(gpu(), p);
    return all_bits(p);
  };
  const auto own = bits_of(512, AttentionImplementation::kOwn);
  EXPECT_EQ(bits_of(256, AttentionImplementation::kAutomatic),
            bits_of(256, AttentionImplementation::kOwn));
  EXPECT_EQ(engines().size(), 0u);
  const auto cudnn = bits_of(512, AttentionImplementation::kAutomatic);
  EXPECT_EQ(engines().size(), 2u);  // forward and backward
  EXPECT_EQ(cudnn, bits_of(512, AttentionImplementation::kCudnn));
  EXPECT_EQ(engines().size(), 2u);
  EXPECT_NE(cudnn, own);
  gpu().attention_engines = nullptr;
  EXPECT_EQ(own, bits_of(512, AttentionImplementation::kAutomatic));
}

TEST_F(AttentionCudnnTest, Refusals) {
  const auto refused = [](const AttentionDesc& d, std::string_view part) {
    return throws_error([&] { attention_plan(on_gpu(d)); }, ErrorKind::kUsage,
                        {"attention", "implementation cudnn", part});
  };
  AttentionDesc d = cudnn_desc(1, 200, 2, 1, 64);
  d.dtype = DType::kFloat32;
  EXPECT_TRUE(refused(d, "bf16"));
  d = cudnn_desc(1, 200, 2, 1, 64);
  d.masking = Masking::kBidirectional;
  EXPECT_TRUE(refused(d, "causal"));
  EXPECT_TRUE(refused(cudnn_desc(1, 200, 2, 1, 60), "multiples of 8"));
  EXPECT_TRUE(refused(cudnn_desc(1, 1, 2, 1, 64), "two or more tokens"));

  const auto refused_call = [&](Problem& p, std::string_view part) {
    return throws_error([&] { run_on_gpu(gpu(), p); }, ErrorKind::kUsage,
                        {"attention", "implementation cudnn", part});
  };
  Problem misaligned(cudnn_desc(1, 200, 2, 1, 64), {}, {8, 1});
  EXPECT_TRUE(refused_call(misaligned, "16 bytes"));
  Problem gaps(cudnn_desc(1, 200, 2, 1, 64), {}, {8, 8});
  EXPECT_TRUE(refused_call(gaps, "lse without gaps"));
  gpu().attention_engines = nullptr;
  Problem plain(cudnn_desc(1, 200, 2, 1, 64), {});
  EXPECT_TRUE(refused_call(plain, "Context::attention_engines"));
}

// What an automatic choice may not hand over, our own kernels compute.
TEST_F(AttentionCudnnTest, MisalignedOperandsFallBack) {
  AttentionDesc d = cudnn_desc(1, 600, 2, 1, 64);
  d.implementation = AttentionImplementation::kAutomatic;
  AttentionDesc own = d;
  own.implementation = AttentionImplementation::kOwn;
  Problem p(d, {}, {7, 3}), q(own, {});
  run_on_gpu(gpu(), p);
  run_on_gpu(gpu(), q);
  EXPECT_EQ(all_bits(p), all_bits(q));
  EXPECT_EQ(engines().size(), 0u);
}

// A run goes on with the kernels it began with: the same bits, and nothing chosen anew.
TEST_F(AttentionCudnnTest, StoredEnginesComeBack) {
  const AttentionDesc d = cudnn_desc(2, 300, 4, 2, 64);
  const Documents documents = {{3, 65, 129, 100, 3}, {133, 36, 131}};
  Problem first(d, documents), plain(d, {});
  run_on_gpu(gpu(), first);
  run_on_gpu(gpu(), plain);
  const std::vector<std::string> stored = engines().to_strings();
  EXPECT_EQ(stored.size(), 4u);
  for (const std::string& entry : stored) {
    EXPECT_NE(entry.find(" engine="), std::string::npos) << entry;
  }
  kernels::AttentionEngines restored;
  restored.load(stored);
  gpu().attention_engines = &restored;
  Problem again(d, documents), plain_again(d, {});
  run_on_gpu(gpu(), again);
  run_on_gpu(gpu(), plain_again);
  EXPECT_EQ(all_bits(again), all_bits(first));
  EXPECT_EQ(all_bits(plain_again), all_bits(plain));
  EXPECT_EQ(restored.to_strings(), stored);
}

TEST_F(AttentionCudnnTest, StoredEnginesThatCannotServeAreNamed) {
  const AttentionDesc d = cudnn_desc(1, 200, 2, 1, 64);
  Problem p(d, {});
  run_on_gpu(gpu(), p);
  const std::vector<std::string> stored = engines().to_strings();
  ASSERT_EQ(stored.size(), 2u);
  const auto refused = [&](const std::string& key, const std::string& value, std::string_view why) {
    std::string entry = stored[0];
    const std::size_t at = entry.find(key) + key.size();
    entry.replace(at, entry.find_first_of(" ", at) - at, value);
    kernels::AttentionEngines table;
    table.load(std::vector<std::string>{entry});
    gpu().attention_engines = &table;
    Problem q(d, {});
    return throws_error([&] { run_on_gpu(gpu(), q); }, ErrorKind::kUsage,
                        {"stored attention engine '" + entry + "'", why, "chosen anew"});
  };
  EXPECT_TRUE(refused("cudnn=", "1", "this is cuDNN"));
  EXPECT_TRUE(refused("engine=", "987654", "refuses it"));
}

// Where cuDNN had no kernel, a stored table says so, and our own kernels compute again.
TEST_F(AttentionCudnnTest, StoredRefusalsComeBack) {
  AttentionDesc d = cudnn_desc(1, 600, 2, 1, 64);
  d.implementation = AttentionImplementation::kAutomatic;
  Problem cudnn(d, {});
  run_on_gpu(gpu(), cudnn);
  std::vector<std::string> stored = engines().to_strings();
  ASSERT_EQ(stored.size(), 2u);
  for (std::string& entry : stored) entry = entry.substr(0, entry.find(" engine=")) + " own";
  kernels::AttentionEngines table;
  table.load(stored);
  gpu().attention_engines = &table;
  Problem restored(d, {});
  run_on_gpu(gpu(), restored);
  d.implementation = AttentionImplementation::kOwn;
  Problem own(d, {});
  run_on_gpu(gpu(), own);
  EXPECT_EQ(all_bits(restored), all_bits(own));
  EXPECT_EQ(table.to_strings(), stored);
}

// Borders that contradict each other reach no memory and no other sequence.
TEST_F(AttentionCudnnTest, BadDocumentsStayInTheirSequence) {
  const AttentionDesc d = cudnn_desc(2, 200, 2, 1, 64);
  const Documents documents = {{2, 4, 194}, {200}};
  Problem bad(d, documents), good(d, documents);
  for (const auto& [t, begin] : {std::pair{3, 1 << 30}, {0, -(1 << 30)}, {150, 170}}) {
    bad.doc_begin.set(t, begin);
  }
  run_on_gpu(gpu(), bad);
  run_on_gpu(gpu(), good);
  for (const auto& [one, other] : {std::pair{&bad.out, &good.out},
                                   {&bad.dq, &good.dq},
                                   {&bad.dk, &good.dk},
                                   {&bad.dv, &good.dv}}) {
    const auto a = one->get(), b = other->get();
    const auto half = static_cast<std::ptrdiff_t>(a.size()) / 2;
    EXPECT_TRUE(std::equal(a.begin() + half, a.end(), b.begin() + half));
  }
  EXPECT_TRUE(bad.guards_intact());
}

TEST_F(AttentionCudnnTest, NothingToDo) {
  for (const auto& [batch, tokens] : {std::pair{0, 5}, {2, 0}}) {
    Problem p(cudnn_desc(batch, tokens, 2, 1, 8), {});
    EXPECT_EQ(attention_plan(on_gpu(p.desc)).workspace_bytes.n, 0);
    run_on_gpu(gpu(), p);
    EXPECT_TRUE(p.guards_intact());
  }
}

}  // namespace
}  // namespace k25::attention_test
