// Keys of latent attention against plain loops, between guard bands and in views with gaps.
#include "kernels/attention/latent_keys.h"

#include "tests/kernels/allocation_counter.h"
#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::for_each_context;
using op_test::GuardedTensor;
using op_test::random_values;
using op_test::round_to;

constexpr std::int64_t kN = 70, kH = 3, kP = 5;

class LatentKeys : public testing::TestWithParam<DType> {
 protected:
  void check(std::int64_t shared_dim, std::int64_t gap) {
    const DType t = GetParam();
    const std::int64_t e = kP + shared_dim;
    const LatentKeysPlan plan = latent_keys_plan(
        {.rows = kN, .heads = kH, .own_dim = kP, .shared_dim = shared_dim, .dtype = t});
    EXPECT_EQ(plan.workspace_bytes.n, 0);
    const op_test::Layout layout{.row_padding = gap};
    const GuardedTensor own(t, {kN, kH, kP}, random_values("own", kN * kH * kP), layout);
    const GuardedTensor shared(t, {kN, shared_dim}, random_values("shared", kN * shared_dim),
                               layout);
    const GuardedTensor d_key(t, {kN, kH, e}, random_values("d_key", kN * kH * e), layout);
    for_each_context([&](Context& ctx) {
      const GuardedTensor key(t, {kN, kH, e}, layout), d_own(t, {kN, kH, kP}, layout),
          d_shared(t, {kN, shared_dim}, layout);
      latent_keys_forward(ctx, plan, {own, shared}, {key}, {});
      latent_keys_backward(ctx, plan, {d_key}, {d_own, d_shared}, {});
      for (std::int64_t n = 0; n < kN; ++n) {
        for (std::int64_t h = 0; h < kH; ++h) {
          for (std::int64_t i = 0; i < e; ++i) {
            const double want =
                i < kP ? own.get((n * kH + h) * kP + i) : shared.get(n * shared_dim + i - kP);
            ASSERT_EQ(key.get((n * kH + h) * e + i), want) << n << " " << h << " " << i;
          }
          for (std::int64_t i = 0; i < kP; ++i) {
            ASSERT_EQ(d_own.get((n * kH + h) * kP + i), d_key.get((n * kH + h) * e + i));
          }
        }
        for (std::int64_t i = 0; i < shared_dim; ++i) {
          ASSERT_EQ(d_shared.get(n * shared_dim + i), sum_of(d_key, n, kP + i, e)) << n << " " << i;
        }
      }
      EXPECT_TRUE(key.guards_intact());
      EXPECT_TRUE(d_own.guards_intact());
      EXPECT_TRUE(d_shared.guards_intact());
    });
  }

 private:
  /// Over the heads in order, in the arithmetic of the storage, rounded once.
  static double sum_of(const GuardedTensor& d_key, std::int64_t n, std::int64_t i, std::int64_t e) {
    const DType arithmetic = GetParam() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    double sum = 0.0;
    for (std::int64_t h = 0; h < kH; ++h) {
      sum = round_to(arithmetic, sum + d_key.get((n * kH + h) * e + i));
    }
    return round_to(GetParam(), sum);
  }
};

TEST_P(LatentKeys, AreOwnPartsBesideTheSharedOne) {
  for (const std::int64_t shared_dim : {1, 8, 16, 37}) {
    for (const std::int64_t gap : {0, 3}) check(shared_dim, gap);
  }
}

INSTANTIATE_TEST_SUITE_P(Storage, LatentKeys,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat64),
                         [](const auto& dtype) { return std::string(dtype_name(dtype.param)); });

TEST(LatentKeysCalls, AllocateNothing) {
  const DType t = DType::kBFloat16;
  const GuardedTensor own(t, {200, 2, 4}), shared(t, {200, 3}), key(t, {200, 2, 7});
  const LatentKeysPlan plan =
      latent_keys_plan({.rows = 200, .heads = 2, .own_dim = 4, .shared_dim = 3, .dtype = t});
  op_test::expect_no_allocation([&](Context& ctx) {
    latent_keys_forward(ctx, plan, {own, shared}, {key}, {});
    latent_keys_backward(ctx, plan, {key}, {own, shared}, {});
  });
}

TEST(LatentKeysCalls, WhatIsWrongIsNamed) {
  const auto refused = [](const std::function<void()>& call, std::string_view words) {
    return op_test::throws_error(call, ErrorKind::kUsage, {words});
  };
  LatentKeysDesc d{.rows = 2, .heads = 2, .own_dim = 4, .shared_dim = 3};
  const GuardedTensor own(d.dtype, {2, 2, 4}), shared(d.dtype, {2, 3}), key(d.dtype, {2, 2, 7});
  const GuardedTensor narrow(d.dtype, {2, 2, 6});
  Context ctx = op_test::make_context();
  const LatentKeysPlan plan = latent_keys_plan(d);
  EXPECT_TRUE(refused([&] { latent_keys_forward(ctx, plan, {own, shared}, {narrow}, {}); },
                      "latent_keys: key_NHE is fp32 [2, 2, 6], expected fp32 [2, 2, 7]"));
  EXPECT_TRUE(refused([&] { latent_keys_backward(ctx, plan, {key}, {own, {}}, {}); },
                      "latent_keys: shared_NS is missing, expected fp32 [2, 3]"));
  d.shared_dim = 0;
  EXPECT_TRUE(refused([&] { latent_keys_plan(d); }, "shared_dim 0 must be positive"));
  d.shared_dim = 3;
  d.device = Device::kCuda;
  EXPECT_TRUE(refused([&] { latent_keys_plan(d); }, "runs on the CPU only"));
}

TEST(LatentKeysCalls, NoRowsAreNoWork) {
  Context ctx = op_test::make_context();
  const LatentKeysPlan plan =
      latent_keys_plan({.rows = 0, .heads = 2, .own_dim = 4, .shared_dim = 3});
  latent_keys_forward(ctx, plan, {}, {}, {});
  latent_keys_backward(ctx, plan, {}, {}, {});
}

}  // namespace
}  // namespace k25::kernels
