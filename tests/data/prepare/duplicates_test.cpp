#include "data/prepare/duplicates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>

namespace k25::data {
namespace {

using Documents = std::vector<std::vector<std::uint64_t>>;

std::string words(int from, int to) {
  std::string text;
  for (int i = from; i < to; ++i) text += "word" + std::to_string(i) + " ";
  return text;
}

TEST(Shingles, AreWindowsOfThirteenWords) {
  EXPECT_EQ(shingles_of(words(0, 13)).size(), 1u);
  EXPECT_EQ(shingles_of(words(0, 14)).size(), 2u);
  EXPECT_EQ(shingles_of(words(0, 100)).size(), 88u);
  EXPECT_EQ(shingles_of(words(0, 13) + words(0, 13) + words(0, 13)).size(), 13u) << "distinct ones";
  EXPECT_TRUE(shingles_of("").empty());
  EXPECT_TRUE(shingles_of(" .,; \n\t -- ").empty());
}

TEST(Shingles, IgnoreCasePunctuationAndLayout) {
  const std::string a =
      "The licensor grants, to the licensee: a licence (non-exclusive) for 3 years only, now";
  const std::string b =
      "the LICENSOR grants to\nthe   licensee a licence non exclusive for 3 years only -- now";
  EXPECT_EQ(shingles_of(a), shingles_of(b));
  EXPECT_NE(shingles_of(a), shingles_of(a + " and"));
}

TEST(Shingles, ShortTextsAreOneShingle) {
  EXPECT_EQ(shingles_of("one two").size(), 1u);
  EXPECT_EQ(shingles_of("one two"), shingles_of("One, two!"));
  EXPECT_NE(shingles_of("one two"), shingles_of("one two three"));
}

TEST(Shingles, CountChineseCharactersOneByOne) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += std::string("\xE4\xB8") + static_cast<char>(0x80 + i);
  EXPECT_EQ(shingles_of(text).size(), 8u);
}

TEST(NearDuplicates, ContainmentIsOfTheSmallerInTheLarger) {
  const Documents documents = {shingles_of(words(0, 500)), shingles_of(words(100, 200)),
                               shingles_of(words(1000, 1100))};
  const NearDuplicates near = find_near_duplicates(documents, 0.8);
  EXPECT_EQ(near.held_by, (std::vector<std::int64_t>{-1, 0, -1}));
  EXPECT_EQ(near.cluster, (std::vector<std::int64_t>{0, 0, 2}));
  EXPECT_DOUBLE_EQ(near.share[1], 1.0);
  EXPECT_DOUBLE_EQ(near.share_in_all[1], 1.0);
  EXPECT_DOUBLE_EQ(near.share_in_all[0], 88.0 / 488.0);
  EXPECT_DOUBLE_EQ(near.share_in_all[2], 0.0);
}

TEST(NearDuplicates, TheBoundaryCounts) {
  // 10 shingles, 8 of them in the other: exactly 0.8.
  const Documents documents = {{1, 2, 3, 4, 5, 6, 7, 8, 100, 101, 102, 103},
                               {1, 2, 3, 4, 5, 6, 7, 8, 200, 201}};
  EXPECT_EQ(find_near_duplicates(documents, 0.8).held_by[1], 0);
  EXPECT_EQ(find_near_duplicates(documents, 0.81).held_by[1], -1);
  EXPECT_DOUBLE_EQ(find_near_duplicates(documents, 0.8).share[1], 0.8);
  EXPECT_EQ(find_near_duplicates(documents, 1.0).held_by[1], -1);
}

TEST(NearDuplicates, OfEqualSizesTheEarlierStays) {
  const Documents documents = {{1, 2, 3}, {1, 2, 3}, {}, {}};
  const NearDuplicates near = find_near_duplicates(documents, 0.8);
  EXPECT_EQ(near.held_by, (std::vector<std::int64_t>{-1, 0, -1, -1}));
  EXPECT_EQ(near.cluster, (std::vector<std::int64_t>{0, 0, 2, 3})) << "empty ones are like nothing";
}

TEST(NearDuplicates, WhatIsDroppedHoldsNothing) {
  // 2 lies in 1, 1 in 0, but 2 only half in 0: it stays, in the same cluster.
  const Documents documents = {
      {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {3, 4, 5, 6, 7, 8, 9, 10, 20, 21}, {7, 8, 20, 21}};
  const NearDuplicates near = find_near_duplicates(documents, 0.8);
  EXPECT_EQ(near.held_by, (std::vector<std::int64_t>{-1, 0, -1}));
  EXPECT_EQ(near.cluster, (std::vector<std::int64_t>{0, 0, 0}));
}

/// All pairs, no index, no shortcuts.
NearDuplicates all_pairs(const Documents& documents, double containment) {
  NearDuplicates near;
  const auto count = static_cast<std::int64_t>(documents.size());
  const auto common = [&](std::int64_t a, std::int64_t b) {
    std::vector<std::uint64_t> both;
    std::set_intersection(documents[a].begin(), documents[a].end(), documents[b].begin(),
                          documents[b].end(), std::back_inserter(both));
    return static_cast<double>(both.size());
  };
  near.held_by.assign(documents.size(), -1);
  for (std::int64_t d = 0; d < count; ++d) near.cluster.push_back(d);
  std::vector<std::int64_t> order = near.cluster;
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return documents[a].size() > documents[b].size(); });
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t j = 0; j < i; ++j) {
      const std::int64_t small = order[i], large = order[j];
      const auto size = static_cast<double>(documents[small].size());
      if (size == 0 || common(small, large) < containment * size - 1e-9) continue;
      if (near.held_by[large] < 0 && near.held_by[small] < 0) near.held_by[small] = large;
      const auto [low, high] = std::minmax(near.cluster[small], near.cluster[large]);
      const std::int64_t to = low, from = high;
      for (auto& c : near.cluster) c = c == from ? to : c;
    }
  }
  return near;
}

TEST(NearDuplicates, FindsWhatAllPairsFind) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    Documents documents;
    for (int d = 0; d < 12; ++d) {
      std::set<std::uint64_t> shingles;
      const unsigned size = random() % 16;
      for (unsigned i = 0; i < size; ++i) shingles.insert(random() % (round % 2 == 0 ? 20 : 40));
      documents.emplace_back(shingles.begin(), shingles.end());
    }
    for (const double containment : {0.3, 0.5, 0.8, 1.0}) {
      const NearDuplicates fast = find_near_duplicates(documents, containment);
      const NearDuplicates slow = all_pairs(documents, containment);
      ASSERT_EQ(fast.cluster, slow.cluster) << round << " " << containment;
      for (std::size_t d = 0; d < documents.size(); ++d) {
        ASSERT_EQ(fast.held_by[d] >= 0, slow.held_by[d] >= 0) << round << " " << containment;
      }
    }
  }
}

}  // namespace
}  // namespace k25::data
