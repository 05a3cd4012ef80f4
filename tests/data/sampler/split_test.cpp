#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "data/sampler/sampler.h"
#include "tests/data/synthetic_corpus.h"

namespace k25::data {
namespace {

using Numbers = std::vector<std::int64_t>;

class SplitTest : public ::testing::Test {
 protected:
  Corpus make(CorpusContent content) {
    return Corpus(write_synthetic(folder_, content, "corpus-" + std::to_string(count_++)));
  }
  /// The licence texts' shape: families of near-duplicates share a cluster.
  Corpus licences() {
    auto c = synthetic_content({{40}, {30, 0, 1}, {30, 0, 1}, {20}, {50, 1, 2}, {50, 1, 2}},
                               {"law", "more"});
    const char* names[] = {"Apache-2.0", "GFDL-1.2", "GFDL-1.3", "MIT", "sub/GPL-2", "sub/GPL-3"};
    for (std::size_t i = 0; i < 6; ++i) c.documents[i].source = names[i];
    return make(c);
  }
  ScratchFolder folder_;
  int count_ = 0;
};

TEST_F(SplitTest, WithoutOptionsAllIsTraining) {
  const auto split = split_documents(licences(), {});
  EXPECT_EQ(split.train, (Numbers{0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(split.validation.empty());
  EXPECT_EQ(split.moved, 0);
}

TEST_F(SplitTest, PatternsNameDocumentsAndTheirClustersFollow) {
  const auto corpus = licences();
  const auto check = [&](std::vector<std::string> patterns, const Numbers& validation,
                         std::int64_t moved) {
    const auto split = split_documents(corpus, {patterns, 0.0, 7});
    EXPECT_EQ(split.validation, validation) << patterns[0];
    EXPECT_EQ(split.moved, moved) << patterns[0];
    EXPECT_EQ(split.train.size() + split.validation.size(), 6u);
    for (const std::int64_t i : split.train) {
      EXPECT_EQ(std::count(validation.begin(), validation.end(), i), 0);
    }
  };
  check({"GFDL*"}, {1, 2}, 0);
  check({"GFDL-1.3"}, {1, 2}, 1);
  check({"MIT", "GFDL-1.[3-9]"}, {1, 2, 3}, 1);
  check({"more/*"}, {4, 5}, 0);
  check({"more/sub/GPL-2"}, {4, 5}, 1);
  check({"law/M?T"}, {3}, 0);
  check({"*GPL-3"}, {4, 5}, 1);
}

TEST_F(SplitTest, PatternsThatMatchNothingOrEverything) {
  const auto corpus = licences();
  expect_error(
      ErrorKind::kData, [&] { split_documents(corpus, {{"MIT", "GDFL*"}, 0.0, 7}); }, "'GDFL*'",
      "6 documents", "'Apache-2.0'");
  expect_error(
      ErrorKind::kData, [&] { split_documents(corpus, {{"*"}, 0.0, 7}); }, "no training document",
      "6 of 6");
  const Split whole = split_documents(corpus, {{"*"}, 0.0, 7}, TrainingSide::kMayBeEmpty);
  EXPECT_EQ(whole.validation.size(), 6u);
  EXPECT_TRUE(whole.train.empty());
  const auto twins = make(synthetic_content({{5, 0, 3}, {5, 0, 3}}));
  expect_error(
      ErrorKind::kData, [&] { split_documents(twins, {{"doc-1"}, 0.0, 7}); },
      "no training document", "1 of them near-duplicates");
  expect_error(
      ErrorKind::kData, [&] { split_documents(twins, {{}, 0.5, 7}); }, "no training document");
  expect_error(
      ErrorKind::kData, [&] { split_documents(make(synthetic_content({})), {}); },
      "no training document");
}

std::int64_t tokens_of(const Corpus& corpus, const Numbers& documents) {
  std::int64_t sum = 0;
  for (const std::int64_t i : documents) {
    const auto& d = corpus.documents()[static_cast<std::size_t>(i)];
    sum += d.token_end - d.token_begin;
  }
  return sum;
}

TEST_F(SplitTest, AFractionDrawsWholeClustersBySeed) {
  std::vector<SyntheticDocument> documents;
  for (int i = 0; i < 300; ++i) documents.push_back({5 + i % 13, 0, i / 2});
  const auto corpus = make(synthetic_content(documents));
  std::set<Numbers> seen;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const auto split = split_documents(corpus, {{}, 0.1, seed});
    EXPECT_NEAR(static_cast<double>(tokens_of(corpus, split.validation)),
                0.1 * static_cast<double>(corpus.info().tokens), 20);
    EXPECT_EQ(split.moved, 0);
    for (const std::int64_t i : split.validation) {
      EXPECT_TRUE(std::binary_search(split.validation.begin(), split.validation.end(), i ^ 1));
      EXPECT_FALSE(std::binary_search(split.train.begin(), split.train.end(), i));
    }
    EXPECT_EQ(split.train.size() + split.validation.size(), 300u);
    EXPECT_EQ(split_documents(corpus, {{}, 0.1, seed}).validation, split.validation);
    seen.insert(split.validation);
  }
  EXPECT_EQ(seen.size(), 5u);
}

TEST_F(SplitTest, AFractionOfFewLargeDocumentsTakesOne) {
  const auto two = make(synthetic_content({{100}, {60}}));
  const auto split = split_documents(two, {{}, 0.01, 7});
  EXPECT_EQ(split.validation, Numbers{1});
  EXPECT_EQ(split.train, Numbers{0});
  const auto equal = make(synthetic_content({{50}, {50}, {50}, {50}}));
  EXPECT_EQ(split_documents(equal, {{}, 0.5, 3}).validation.size(), 2u);
}

TEST_F(SplitTest, PatternsCountTowardsTheFraction) {
  const auto corpus = make(synthetic_content(std::vector<SyntheticDocument>(100, {10})));
  const auto split = split_documents(corpus, {{"doc-1?"}, 0.25, 7});
  EXPECT_EQ(split.validation.size(), 25u);
  for (std::int64_t i = 10; i < 20; ++i) {
    EXPECT_TRUE(std::binary_search(split.validation.begin(), split.validation.end(), i));
  }
  EXPECT_EQ(split_documents(corpus, {{"doc-1?"}, 0.05, 7}).validation.size(), 10u);
}

TEST_F(SplitTest, FractionsOutOfRange) {
  const auto corpus = licences();
  for (const double fraction : {-0.1, 1.0, 1.5, std::nan("")}) {
    expect_error(ErrorKind::kUsage, [&] { split_documents(corpus, {{}, fraction, 7}); }, "[0, 1)");
  }
}

}  // namespace
}  // namespace k25::data
