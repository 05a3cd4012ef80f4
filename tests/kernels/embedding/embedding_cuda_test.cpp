#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/embedding/embedding.h"
#include "tests/kernels/cuda_test.h"

namespace k25::kernels {
namespace {

using op_test::GpuScratch;
using op_test::GuardedTensor;
using op_test::Layout;
using op_test::OnGpu;
using op_test::random_tensor;
using op_test::throws_error;
using Bits = std::vector<std::uint8_t>;

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16};

struct Sizes {
  std::int64_t tokens, vocab, hidden;
};

GuardedTensor tokens_of(const std::vector<double>& values) {
  return GuardedTensor(DType::kInt32, {static_cast<std::int64_t>(values.size())}, values);
}

/// Half of the tokens spread evenly, half crowd towards token 0.
GuardedTensor random_tokens(std::int64_t count, std::int64_t vocab) {
  std::vector<double> values = op_test::random_values("tokens", count, 0, 1);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double u = i % 2 == 0 ? values[i] : std::pow(values[i], 8);
    values[i] =
        std::min(std::floor(u * static_cast<double>(vocab)), static_cast<double>(vocab - 1));
  }
  return tokens_of(values);
}

class EmbeddingCudaTest : public op_test::CudaTest {
 protected:
  static EmbeddingPlan plan_of(Sizes s, DType dtype, Device device) {
    return embedding_plan({.tokens = s.tokens,
                           .vocab = s.vocab,
                           .hidden = s.hidden,
                           .dtype = dtype,
                           .device = device});
  }
  /// Bits of out, or for the CPU the expected ones.
  Bits forward(const GuardedTensor& token, Sizes s, DType dtype, Device device, Layout layout) {
    const GuardedTensor table = random_tensor("table", dtype, {s.vocab, s.hidden}, layout);
    const GuardedTensor out(dtype, {s.tokens, s.hidden}, layout);
    const EmbeddingPlan plan = plan_of(s, dtype, device);
    if (device == Device::kCpu) {
      embedding_forward(cpu(), plan, {token, table}, {out}, {});
      return out.bits();
    }
    const OnGpu on_token(gpu(), token), on_table(gpu(), table), on_out(gpu(), out);
    embedding_forward(gpu(), plan, {on_token, on_table}, {on_out}, {});
    EXPECT_TRUE(on_out.fetch().guards_intact());
    return out.bits();
  }
  Bits backward(const GuardedTensor& token, Sizes s, DType dtype, Device device, Layout layout) {
    const GuardedTensor dout = random_tensor("dout", dtype, {s.tokens, s.hidden}, layout);
    const GuardedTensor dtable =
        random_tensor("dtable", DType::kFloat32, {s.vocab, s.hidden}, layout);
    const EmbeddingPlan plan = plan_of(s, dtype, device);
    if (device == Device::kCpu) {
      embedding_backward(cpu(), plan, {token, dout}, {dtable}, {});
      return dtable.bits();
    }
    const GpuScratch scratch(gpu(), plan.workspace_bytes);
    const OnGpu on_token(gpu(), token), on_dout(gpu(), dout), on_dtable(gpu(), dtable);
    embedding_backward(gpu(), plan, {on_token, on_dout}, {on_dtable}, scratch.workspace());
    EXPECT_TRUE(on_dtable.fetch().guards_intact());
    return dtable.bits();
  }
  void check(const GuardedTensor& token, Sizes s) {
    for (const DType dtype : kFloats) {
      const Bits out = forward(token, s, dtype, Device::kCpu, {});
      const Bits dtable = backward(token, s, dtype, Device::kCpu, {});
      for (const Layout layout : {Layout{}, Layout{}, Layout{.row_padding = 8, .shift = 8},
                                  Layout{.row_padding = 3, .shift = 1}}) {
        SCOPED_TRACE(std::to_string(s.tokens) + " of " + std::to_string(s.vocab) + " x " +
                     std::to_string(s.hidden) + " " + std::string(dtype_name(dtype)));
        EXPECT_EQ(forward(token, s, dtype, Device::kCuda, layout), out);
        EXPECT_EQ(backward(token, s, dtype, Device::kCuda, layout), dtable);
      }
    }
  }
};

TEST_F(EmbeddingCudaTest, EqualsTheCpuBitForBit) {
  for (const Sizes& s :
       {Sizes{0, 5, 4}, Sizes{1, 1, 1}, Sizes{7, 3, 5}, Sizes{63, 10, 127}, Sizes{64, 1, 128},
        Sizes{65, 1, 129}, Sizes{200, 1000, 256}, Sizes{513, 40, 264}, Sizes{5000, 300, 72},
        Sizes{9000, 70000, 8}, Sizes{300, 2, 9000}}) {
    check(random_tokens(s.tokens, s.vocab), s);
  }
}

// Lists around the limits of the code: what a warp sorts (32, 64), what a block sorts (256), rows
// of one stage (128), and one long enough for several rounds of everything.
TEST_F(EmbeddingCudaTest, RowsOfManyTokensAddInOrder) {
  std::vector<double> tokens;
  const std::vector<std::size_t> counts{31, 32, 33, 63, 64, 65, 128, 129, 256, 257, 10000, 1};
  const auto total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  std::vector<std::size_t> left = counts;
  for (std::size_t i = 0; tokens.size() < total; ++i) {
    const std::size_t t = (i * i + i / 3 + i / 7) % counts.size();
    if (left[t] == 0) continue;
    --left[t];
    tokens.push_back(static_cast<double>(t));
  }
  check(tokens_of(tokens), {static_cast<std::int64_t>(total), 12, 264});
}

TEST_F(EmbeddingCudaTest, ABadTokenMakesItsRowNanAndNoGradient) {
  const Sizes s{5, 4, 24};
  const GuardedTensor good = tokens_of({0, 3, 3, 1, 0});
  const GuardedTensor bad = tokens_of({0, 4, 3, -1, 2147483647});
  for (const DType dtype : kFloats) {
    for (const Layout layout : {Layout{}, Layout{.row_padding = 3, .shift = 1}}) {
      const GuardedTensor table = random_tensor("table", dtype, {4, 24}, layout);
      const GuardedTensor out(dtype, {5, 24}, layout);
      const OnGpu token(gpu(), bad), on_table(gpu(), table), on_out(gpu(), out);
      embedding_forward(gpu(), plan_of(s, dtype, Device::kCuda), {token, on_table}, {on_out}, {});
      EXPECT_TRUE(on_out.fetch().guards_intact());
      for (std::int64_t i = 0; i < out.count(); ++i) {
        const std::int64_t n = i / 24;
        if (n == 0 || n == 2) {
          EXPECT_EQ(out.get(i), table.get((n == 0 ? 0 : 3) * 24 + i % 24));
        } else {
          EXPECT_TRUE(std::isnan(out.get(i))) << i;
        }
      }
      // Token 0 at position 0 and token 3 at position 2 alone.
      const GuardedTensor dout = random_tensor("dout", dtype, {5, 24});
      const GuardedTensor dtable = random_tensor("dtable", DType::kFloat32, {4, 24}, layout);
      std::vector<double> want = dtable.get();
      for (std::size_t c = 0; c < 24; ++c) {
        const auto at = static_cast<std::int64_t>(c);
        want[c] = static_cast<float>(want[c] + dout.get(at));
        want[72 + c] = static_cast<float>(want[72 + c] + dout.get(48 + at));
      }
      const EmbeddingPlan plan = plan_of(s, dtype, Device::kCuda);
      const GpuScratch scratch(gpu(), plan.workspace_bytes);
      const OnGpu on_dout(gpu(), dout), on_dtable(gpu(), dtable);
      embedding_backward(gpu(), plan, {token, on_dout}, {on_dtable}, scratch.workspace());
      EXPECT_EQ(on_dtable.fetch().get(), want);
      EXPECT_TRUE(dtable.guards_intact());
    }
  }
  const EmbeddingDesc desc = plan_of(s, DType::kFloat32, Device::kCuda).desc;
  embedding_check_tokens(desc, good);
  EXPECT_TRUE(throws_error([&] { embedding_check_tokens(desc, bad); }, ErrorKind::kUsage,
                           {"token 4", "position 1", "vocabulary of 4"}));
}

TEST_F(EmbeddingCudaTest, RefusesWhatDoesNotFit) {
  const ErrorKind usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error([] { plan_of({1, 1, 1}, DType::kFloat64, Device::kCuda); }, usage,
                           {"embedding", "fp64 runs on the CPU only"}));
  EXPECT_TRUE(
      throws_error([] { plan_of({std::int64_t{1} << 31, 1, 1}, DType::kFloat32, Device::kCuda); },
                   usage, {"tokens 2147483648", "below 2^31"}));
  const EmbeddingPlan plan = plan_of({2, 4, 2}, DType::kFloat32, Device::kCuda);
  const GuardedTensor token = tokens_of({0, 1}), table(DType::kFloat32, {4, 2});
  const GuardedTensor out(DType::kFloat32, {2, 2});
  const OnGpu on_token(gpu(), token), on_table(gpu(), table), on_out(gpu(), out);
  EXPECT_TRUE(throws_error([&] { embedding_forward(gpu(), plan, {token, on_table}, {on_out}, {}); },
                           usage, {"token_N is in host memory"}));
  EXPECT_TRUE(throws_error([&] { embedding_forward(gpu(), plan, {on_token, on_table}, {out}, {}); },
                           usage, {"out_ND is in host memory"}));
  EXPECT_TRUE(throws_error(
      [&] { embedding_backward(gpu(), plan, {on_token, on_out}, {on_table}, {}); }, usage,
      {"workspace of 0 bytes", "needs " + std::to_string(plan.workspace_bytes.n)}));
}

}  // namespace
}  // namespace k25::kernels
