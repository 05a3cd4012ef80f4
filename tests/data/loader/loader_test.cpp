#include "data/loader/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/data/synthetic_corpus.h"

namespace k25::data {
namespace {

using Ints = std::vector<std::int32_t>;

/// Each target of a synthetic corpus, once: every token but the first of each document, where its
/// label mask is set. Ends of documents are all 0, so the token before tells them apart.
std::map<std::pair<std::int32_t, std::int32_t>, int> expected_targets(
    const CorpusContent& content, const std::vector<std::int64_t>& documents) {
  std::map<std::pair<std::int32_t, std::int32_t>, int> targets;
  for (const std::int64_t index : documents) {
    const auto& d = content.documents[static_cast<std::size_t>(index)];
    for (auto i = static_cast<std::size_t>(d.token_begin) + 1;
         i < static_cast<std::size_t>(d.token_end); ++i) {
      if (content.labels[i] == 1) ++targets[{content.tokens[i - 1], content.tokens[i]}];
    }
  }
  return targets;
}

void add_targets(const Batch& batch,
                 std::map<std::pair<std::int32_t, std::int32_t>, int>& targets) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < batch.labels.size(); ++i) {
    if (batch.labels[i] == -1) continue;
    ++targets[{batch.tokens[i], batch.labels[i]}];
    ++count;
  }
  EXPECT_EQ(batch.label_tokens, count);
}

/// What must hold in every batch, whatever the documents.
void check_structure(const Batch& batch) {
  const std::int64_t t = batch.tokens_per_sequence;
  for (std::int64_t row = 0; row < batch.sequences; ++row) {
    for (std::int64_t i = 0; i < t; ++i) {
      const auto at = static_cast<std::size_t>(row * t + i);
      ASSERT_LE(batch.doc_begin[at], i);
      ASSERT_LT(i, batch.doc_end[at]);
      ASSERT_LE(batch.doc_end[at], t);
      ASSERT_EQ(batch.position[at], i - batch.doc_begin[at]);
      const auto first = static_cast<std::size_t>(row * t + batch.doc_begin[at]);
      ASSERT_EQ(batch.doc_begin[first], batch.doc_begin[at]);
      ASSERT_EQ(batch.doc_end[first], batch.doc_end[at]);
      // The target of all but the last token of a piece is the token behind it.
      if (i + 1 < batch.doc_end[at] && batch.labels[at] != -1) {
        ASSERT_EQ(batch.labels[at], batch.tokens[at + 1]);
      }
    }
  }
}

class LoaderTest : public ::testing::Test {
 protected:
  Corpus make(const CorpusContent& content) {
    return Corpus(write_synthetic(folder_, content, "corpus-" + std::to_string(count_++)));
  }
  ScratchFolder folder_;
  int count_ = 0;
};

TEST_F(LoaderTest, AHandMadeWindow) {
  auto content = synthetic_content({{3}, {1}, {6}});  // 1 2 0 | 0 | 5 6 7 8 9 0
  content.labels[5] = 0;
  const auto corpus = make(content);
  const ValidationSet set(corpus, all_documents(corpus), 7);
  ASSERT_EQ(set.windows(), 2);
  Batch batch;
  batch.resize(3, 7);
  set.load(0, batch);
  EXPECT_EQ(batch.tokens, (Ints{1, 2, 0, 0, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(batch.labels,
            (Ints{2, 0, -1, -1, -1, 7, 8, 9, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(batch.doc_begin, (Ints{0, 0, 0, 3, 4, 4, 4, 0, 0, 0, 3, 3, 3, 3, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(batch.doc_end, (Ints{3, 3, 3, 4, 7, 7, 7, 3, 3, 3, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}));
  EXPECT_EQ(batch.position, (Ints{0, 1, 2, 0, 0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(batch.sample, (std::vector<std::int64_t>{0, 1, -1}));
  EXPECT_EQ(batch.domain, (Ints{0, 0, -1}));
  EXPECT_EQ(batch.label_tokens, 6);
}

TEST_F(LoaderTest, EmptyRowsAndBatches) {
  Batch batch;
  batch.resize(2, 3);
  EXPECT_EQ(batch.labels, Ints(6, -1));
  EXPECT_EQ(batch.doc_end, Ints(6, 3));
  EXPECT_EQ(batch.position, (Ints{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(batch.sample, (std::vector<std::int64_t>{-1, -1}));
  EXPECT_EQ(batch.domain, Ints(2, -1));
  EXPECT_EQ(batch.spans.size(), 2u);
  batch.resize(0, 3);
  EXPECT_TRUE(batch.tokens.empty());
  auto content = synthetic_content({{4}});
  content.info.end_of_document = 0;
  const auto corpus = make(content);
  const Sampler sampler(corpus, {0}, {3, 7, {}, OnExhausted::kWrap});
  batch.resize(2, 3);
  batch.labels[0] = 5;  // left over from before
  batch.label_tokens = 1;
  load_samples(corpus, sampler, {}, batch);
  EXPECT_EQ(batch.labels, Ints(6, -1));
  EXPECT_EQ(batch.label_tokens, 0);
}

TEST_F(LoaderTest, EveryEpochHoldsEveryTokenAndTargetOnce) {
  const std::vector<SyntheticDocument> documents = {{17}, {1},     {40}, {9, 1}, {1, 1},
                                                    {1},  {33, 1}, {2},  {8},    {16, 1}};
  auto content = synthetic_content(documents, {"a", "b"});
  for (std::size_t i = 0; i < content.labels.size(); i += 5) content.labels[i] = 0;
  const auto corpus = make(content);
  for (const std::int64_t sequence : {1, 2, 7, 8, 33, 200}) {
    const Sampler sampler(corpus, all_documents(corpus),
                          {sequence, 7, {{"a", 0.3}, {"b", 0.7}}, OnExhausted::kWrap});
    Batch batch;
    batch.resize(3, sequence);
    auto state = sampler.initial_state();
    std::map<std::pair<std::int32_t, std::int64_t>, std::map<std::int32_t, int>> tokens;
    std::map<std::pair<std::int32_t, std::int64_t>,
             std::map<std::pair<std::int32_t, std::int32_t>, int>>
        targets;
    while (*std::min_element(state.consumed.begin(), state.consumed.end()) <
           3 * std::max(sampler.windows_per_epoch(0), sampler.windows_per_epoch(1))) {
      const auto samples = sampler.draw(state, 1);
      load_samples(corpus, sampler, samples, batch);
      ASSERT_NO_FATAL_FAILURE(check_structure(batch));
      EXPECT_EQ(batch.sample[0], samples[0].number);
      EXPECT_EQ(batch.domain[0], samples[0].domain);
      const std::pair key{samples[0].domain, samples[0].epoch};
      add_targets(batch, targets[key]);
      for (std::int64_t i = 0; i < sequence; ++i)
        ++tokens[key][batch.tokens[static_cast<std::size_t>(i)]];
    }
    for (const std::int32_t domain : {0, 1}) {
      std::vector<std::int64_t> own;
      std::map<std::int32_t, int> own_tokens;
      for (std::size_t d = 0; d < documents.size(); ++d) {
        if (documents[d].domain != domain) continue;
        own.push_back(static_cast<std::int64_t>(d));
        const auto& row = content.documents[d];
        for (std::int64_t i = row.token_begin; i < row.token_end; ++i) {
          ++own_tokens[content.tokens[static_cast<std::size_t>(i)]];
        }
      }
      std::int64_t total = 0;
      for (const auto& [token, count] : own_tokens) total += count;
      const std::int64_t windows = sampler.windows_per_epoch(domain);
      own_tokens[0] += static_cast<int>(windows * sequence - total);  // padding
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        EXPECT_EQ((targets[{domain, epoch}]), expected_targets(content, own)) << sequence;
        EXPECT_EQ((tokens[{domain, epoch}]), own_tokens) << sequence;
      }
    }
  }
}

TEST_F(LoaderTest, RowsDoNotDependOnTheBatch) {
  const auto content = synthetic_content({{17}, {1}, {40}, {9}, {33}});
  const auto corpus = make(content);
  const Sampler sampler(corpus, all_documents(corpus), {8, 7, {}, OnExhausted::kWrap});
  auto state = sampler.initial_state();
  const auto samples = sampler.draw(state, 24);
  Batch whole, single;
  whole.resize(24, 8);
  single.resize(1, 8);
  load_samples(corpus, sampler, samples, whole);
  std::int64_t label_tokens = 0;
  for (std::size_t row = 0; row < 24; ++row) {
    load_samples(corpus, sampler, std::span(samples).subspan(row, 1), single);
    const auto slice = [&](const Ints& all) {
      return Ints(all.begin() + static_cast<std::ptrdiff_t>(8 * row),
                  all.begin() + static_cast<std::ptrdiff_t>(8 * row + 8));
    };
    EXPECT_EQ(single.tokens, slice(whole.tokens));
    EXPECT_EQ(single.labels, slice(whole.labels));
    EXPECT_EQ(single.doc_begin, slice(whole.doc_begin));
    EXPECT_EQ(single.doc_end, slice(whole.doc_end));
    label_tokens += single.label_tokens;
  }
  EXPECT_EQ(whole.label_tokens, label_tokens);
}

TEST_F(LoaderTest, FileBordersDoNotMatter) {
  auto content = synthetic_content({{17}, {1}, {40}, {9}, {33}});
  content.spans = {{0, 3, 9}, {1, 20, 50}, {0, 60, 61}};
  const auto one = make(content);
  content.max_file_tokens = 1;
  const auto many = make(content);
  Batch a, b;
  a.resize(30, 8);
  b.resize(30, 8);
  for (int pass = 0; pass < 2; ++pass) {
    if (pass == 0) {
      ValidationSet(one, all_documents(one), 8).load(0, a);
      ValidationSet(many, all_documents(many), 8).load(0, b);
    } else {
      const Sampler x(one, all_documents(one), {8, 7, {}, OnExhausted::kWrap});
      const Sampler y(many, all_documents(many), {8, 7, {}, OnExhausted::kWrap});
      auto state_x = x.initial_state(), state_y = y.initial_state();
      load_samples(one, x, x.draw(state_x, 30), a);
      load_samples(many, y, y.draw(state_y, 30), b);
    }
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.labels, b.labels);
    EXPECT_EQ(a.sample, b.sample);
    for (std::size_t row = 0; row < 30; ++row) {
      ASSERT_EQ(a.spans[row].size(), b.spans[row].size());
    }
  }
}

TEST_F(LoaderTest, SpansAreCutToTheWindow) {
  auto content = synthetic_content({{4}, {16}});
  content.spans = {{0, 1, 3}, {1, 4, 20}, {0, 7, 9}, {1, 12, 13}};
  const auto corpus = make(content);
  const ValidationSet set(corpus, all_documents(corpus), 8);
  Batch batch;
  batch.resize(3, 8);
  set.load(0, batch);
  const auto flat = [&](std::size_t row) {
    std::vector<std::int64_t> all;
    for (const Span& s : batch.spans[row]) all.insert(all.end(), {s.kind, s.begin, s.end});
    return all;
  };
  EXPECT_EQ(flat(0), (std::vector<std::int64_t>{0, 1, 3, 1, 4, 8, 0, 7, 8}));
  EXPECT_EQ(flat(1), (std::vector<std::int64_t>{1, 0, 8, 0, 0, 1, 1, 4, 5}));
  EXPECT_EQ(flat(2), (std::vector<std::int64_t>{1, 0, 4}));
  set.load(2, batch);  // what was there before is gone
  EXPECT_EQ(flat(0), (std::vector<std::int64_t>{1, 0, 4}));
  EXPECT_TRUE(batch.spans[1].empty());
}

// CASES A15, A17: 3 x 128 + 1 tokens, batches that do not divide the windows.
TEST_F(LoaderTest, ValidationCountsEachTargetOnce) {
  auto content = synthetic_content({{200}, {1}, {100, 1}, {84}}, {"a", "b"});
  ASSERT_EQ(content.tokens.size(), 385u);
  content.labels[50] = 0;
  const auto corpus = make(content);
  const ValidationSet set(corpus, all_documents(corpus), 128);
  ASSERT_EQ(set.windows(), 4);
  EXPECT_EQ(set.domain(0), 0);
  EXPECT_EQ(set.domain(2), 1);  // token 256 lies in the third document
  EXPECT_EQ(set.domain(3), 0);
  EXPECT_THROW(set.domain(4), Error);
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 16}) {
    Batch batch;
    batch.resize(rows, 128);
    std::map<std::pair<std::int32_t, std::int32_t>, int> targets;
    std::int64_t filled = 0;
    for (std::int64_t first = 0; first < 20; first += rows) {
      set.load(first, batch);
      ASSERT_NO_FATAL_FAILURE(check_structure(batch));
      add_targets(batch, targets);
      filled += std::count_if(batch.sample.begin(), batch.sample.end(),
                              [](std::int64_t s) { return s >= 0; });
    }
    EXPECT_EQ(targets, expected_targets(content, all_documents(corpus))) << rows;
    EXPECT_EQ(filled, 4) << rows;
  }
}

TEST_F(LoaderTest, ValidationOfSomeOrNoDocuments) {
  const auto content = synthetic_content({{5}, {7}, {1}, {9}});
  const auto corpus = make(content);
  const ValidationSet none(corpus, {}, 4);
  EXPECT_EQ(none.windows(), 0);
  Batch batch;
  batch.resize(2, 4);
  none.load(0, batch);
  EXPECT_EQ(batch.label_tokens, 0);
  EXPECT_EQ(batch.sample, (std::vector<std::int64_t>{-1, -1}));
  const ValidationSet some(corpus, {3, 0}, 4);  // corpus order, whatever the list's
  ASSERT_EQ(some.windows(), 4);
  batch.resize(4, 4);
  some.load(0, batch);
  EXPECT_EQ(batch.tokens, (Ints{1, 2, 3, 4, 0, 14, 15, 16, 17, 18, 19, 20, 21, 0, 0, 0}));
  EXPECT_EQ(batch.label_tokens, 12);
  EXPECT_THROW(ValidationSet(corpus, {4}, 4), Error);
  EXPECT_THROW(ValidationSet(corpus, {1, 1}, 4), Error);
  expect_error(ErrorKind::kUsage, [&] { ValidationSet(corpus, {1}, 0); }, "0 tokens");
  EXPECT_THROW(some.load(-1, batch), Error);
}

TEST_F(LoaderTest, RefusesBatchesOfAnotherShape) {
  const auto corpus = make(synthetic_content({{20}}));
  const Sampler sampler(corpus, {0}, {8, 7, {}, OnExhausted::kWrap});
  auto state = sampler.initial_state();
  const auto samples = sampler.draw(state, 3);
  Batch batch;
  batch.resize(2, 8);
  EXPECT_THROW(load_samples(corpus, sampler, samples, batch), Error);
  batch.resize(3, 7);
  EXPECT_THROW(load_samples(corpus, sampler, samples, batch), Error);
}

}  // namespace
}  // namespace k25::data
