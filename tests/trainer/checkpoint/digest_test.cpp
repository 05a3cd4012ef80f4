// The digest of a state: the same however the elements are cut, another one for any other state.
#include "trainer/checkpoint/digest.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace k25::trainer {
namespace {

std::vector<float> values(std::int64_t n) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i % 97) * 0.25F;
  return v;
}

std::string digest(const std::vector<float>& v, const std::vector<std::int64_t>& cuts,
                   const std::string& unit = "layers.0", int tensor = 0) {
  DigestSums sums(1);
  std::int64_t begin = 0;
  for (const std::int64_t length : cuts) {
    sums.add(0, unit, tensor, begin, v.data() + begin, length);
    begin += length;
  }
  EXPECT_EQ(begin, static_cast<std::int64_t>(v.size()));
  const TensorDigests d = sums.finish();
  return tensor == 0 ? d.master : tensor == 1 ? d.m : d.v;
}

TEST(Digest, DoesNotDependOnTheCuts) {
  const std::vector<float> v = values(1000);
  const std::string whole = digest(v, {1000});
  EXPECT_EQ(digest(v, {1, 0, 998, 1}), whole);
  EXPECT_EQ(digest(v, {500, 500}), whole);
}

TEST(Digest, DoesNotDependOnTheOrderOfTheParts) {
  const std::vector<float> v = values(100);
  DigestSums a(1);
  a.add(0, "u", 0, 60, v.data() + 60, 40);
  a.add(0, "u", 0, 0, v.data(), 60);
  EXPECT_EQ(a.finish().master, digest(v, {100}, "u"));
}

TEST(Digest, SeesEveryElementItsPlaceAndItsBits) {
  const std::vector<float> v = values(64);
  std::set<std::string> seen = {digest(v, {64})};
  for (std::size_t i = 0; i < v.size(); ++i) {
    std::vector<float> other = v;
    other[i] = std::nextafter(other[i], 1e9F);
    seen.insert(digest(other, {64}));
  }
  for (std::size_t i = 1; i < v.size(); ++i) {
    std::vector<float> swapped = v;
    std::swap(swapped[i - 1], swapped[i]);
    seen.insert(digest(swapped, {64}));
  }
  std::vector<float> negative_zero = v;
  negative_zero[0] = -0.0F;
  seen.insert(digest(negative_zero, {64}));
  EXPECT_EQ(seen.size(), 1 + 64 + 63 + 1U);
}

TEST(Digest, SeesUnitAndTensor) {
  const std::vector<float> v = values(64);
  EXPECT_NE(digest(v, {64}, "layers.0"), digest(v, {64}, "layers.1"));
  EXPECT_NE(digest(v, {64}, "layers.0", 0), digest(v, {64}, "layers.0", 1));
  EXPECT_NE(digest(v, {64}, "layers.0", 1), digest(v, {64}, "layers.0", 2));
}

}  // namespace
}  // namespace k25::trainer
