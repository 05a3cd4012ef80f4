#include "data/sampler/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "kernels/core/check.h"

namespace k25::data {
namespace {

std::vector<std::int64_t> all(const Permutation& p, std::int64_t n) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < n; ++i) order.push_back(p.at(i));
  return order;
}

TEST(Permutation, HoldsEachElementOnce) {
  for (std::int64_t n = 1; n < 5000; n += n < 70 ? 1 : 397) {
    const auto order = all(Permutation(n, 7, 3, "windows/a"), n);
    const std::set<std::int64_t> set(order.begin(), order.end());
    EXPECT_EQ(static_cast<std::int64_t>(set.size()), n);
    EXPECT_EQ(*set.begin(), 0);
    EXPECT_EQ(*set.rbegin(), n - 1);
  }
}

TEST(Permutation, DependsOnSeedEpochAndNameAlone) {
  const std::int64_t n = 100;
  const auto base = all(Permutation(n, 7, 3, "a"), n);
  EXPECT_EQ(all(Permutation(n, 7, 3, "a"), n), base);
  EXPECT_NE(all(Permutation(n, 8, 3, "a"), n), base);
  EXPECT_NE(all(Permutation(n, 7, 4, "a"), n), base);
  EXPECT_NE(all(Permutation(n, 7, 3, "b"), n), base);
}

// Over many epochs all orders of a tiny set come equally often: 720 draws each, sigma 25.
TEST(Permutation, TinySetsAreShuffledEvenly) {
  std::map<std::vector<std::int64_t>, int> seen;
  for (std::uint64_t epoch = 0; epoch < 24 * 720; ++epoch) {
    ++seen[all(Permutation(4, 7, epoch, "a"), 4)];
  }
  ASSERT_EQ(seen.size(), 24u);
  for (const auto& [order, count] : seen) EXPECT_NEAR(count, 720, 150);
}

// Where each element lands, and what follows what, shows no pattern.
TEST(Permutation, PositionsAndNeighboursAreEven) {
  const std::int64_t n = 50;
  std::vector<int> landed(static_cast<std::size_t>(n * n)), follows(landed);
  for (std::uint64_t epoch = 0; epoch < 10000; ++epoch) {
    const auto order = all(Permutation(n, 1, epoch, "a"), n);
    for (std::int64_t i = 0; i < n; ++i) {
      ++landed[static_cast<std::size_t>(i * n + order[static_cast<std::size_t>(i)])];
      if (i > 0) {
        const auto step =
            order[static_cast<std::size_t>(i)] - order[static_cast<std::size_t>(i - 1)];
        ++follows[static_cast<std::size_t>((step + n) % n)];
      }
    }
  }
  for (const int count : landed) EXPECT_NEAR(count, 200, 90);  // sigma 14
  for (std::int64_t step = 1; step < n; ++step) {
    EXPECT_NEAR(follows[static_cast<std::size_t>(step)], 10000, 600);  // sigma 100
  }
}

TEST(Permutation, WorksPast32Bits) {
  const std::int64_t n = (std::int64_t{1} << 40) + 12345;
  const Permutation p(n, 7, 0, "a");
  std::set<std::int64_t> seen;
  std::int64_t large = 0;
  for (std::int64_t i = n - 1000; i < n; ++i) {
    const std::int64_t x = p.at(i);
    EXPECT_GE(x, 0);
    EXPECT_LT(x, n);
    EXPECT_TRUE(seen.insert(x).second);
    large += x > std::int64_t{1} << 39 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(large), 500, 100);
}

TEST(Permutation, RefusesElementsOutside) {
  const Permutation p(3, 7, 0, "a");
  EXPECT_THROW(p.at(3), Error);
  EXPECT_THROW(p.at(-1), Error);
  EXPECT_THROW(Permutation(0, 7, 0, "a").at(0), Error);
}

}  // namespace
}  // namespace k25::data
