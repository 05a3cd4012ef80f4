#include "data/sampler/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <thread>

#include "tests/data/synthetic_corpus.h"

namespace k25::data {
namespace {

using Numbers = std::vector<std::int64_t>;

bool same(const std::vector<SampleRef>& a, const std::vector<SampleRef>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return std::tie(x.number, x.domain, x.epoch, x.window) ==
           std::tie(y.number, y.domain, y.epoch, y.window);
  });
}

/// Corpus offsets of all tokens of the samples, in order.
Numbers offsets(const Sampler& sampler, std::span<const SampleRef> samples) {
  Numbers all;
  for (const auto& sample : samples) {
    for (const auto& piece : sampler.pieces(sample)) {
      for (std::int64_t i = piece.begin; i < piece.end; ++i) all.push_back(i);
    }
  }
  return all;
}

Numbers sorted(Numbers values) {
  std::sort(values.begin(), values.end());
  return values;
}

Numbers range(std::int64_t begin, std::int64_t end) {
  Numbers all(static_cast<std::size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

class SamplerTest : public ::testing::Test {
 protected:
  Corpus make(const std::vector<SyntheticDocument>& documents,
              const std::vector<std::string>& domains = {"a"}) {
    return Corpus(write_synthetic(folder_, synthetic_content(documents, domains),
                                  "corpus-" + std::to_string(count_++)));
  }
  ScratchFolder folder_;
  int count_ = 0;
};

TEST_F(SamplerTest, EachEpochHoldsEachTokenOnce) {
  const auto corpus = make({{17}, {1}, {40}, {9}, {1}, {1}, {33}});
  const Sampler sampler(corpus, all_documents(corpus), {8, 7, {}, OnExhausted::kWrap});
  ASSERT_EQ(sampler.windows_per_epoch(0), 13);
  auto state = sampler.initial_state();
  std::vector<Numbers> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    const auto samples = sampler.draw(state, 13);
    std::set<std::int64_t> windows;
    for (const auto& s : samples) {
      EXPECT_EQ(s.epoch, epoch);
      windows.insert(s.window);
    }
    EXPECT_EQ(windows.size(), 13u);
    epochs.push_back(offsets(sampler, samples));
    EXPECT_EQ(sorted(epochs.back()), range(0, 102)) << "epoch " << epoch;
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST_F(SamplerTest, DocumentsAndWindowsAreShuffledEachEpoch) {
  const auto corpus = make(std::vector<SyntheticDocument>(20, {4}));
  const Sampler sampler(corpus, all_documents(corpus), {4, 7, {}, OnExhausted::kWrap});
  const auto document_order = [&](std::int64_t epoch) {
    Numbers order;
    for (std::int64_t w = 0; w < 20; ++w) {
      order.push_back(sampler.pieces({0, 0, epoch, w}).at(0).document);
    }
    return order;
  };
  EXPECT_NE(document_order(0), range(0, 20));
  EXPECT_NE(document_order(0), document_order(1));
  EXPECT_EQ(sorted(document_order(1)), range(0, 20));
  auto state = sampler.initial_state();
  Numbers windows;
  for (const auto& s : sampler.draw(state, 20)) windows.push_back(s.window);
  EXPECT_NE(windows, range(0, 20));
}

TEST_F(SamplerTest, WindowsCutTheStreamWithoutGaps) {
  const auto corpus = make({{5}, {3}, {12}});
  const Sampler sampler(corpus, all_documents(corpus), {6, 7, {}, OnExhausted::kWrap});
  std::int64_t total = 0;
  for (std::int64_t w = 0; w < sampler.windows_per_epoch(0); ++w) {
    std::int64_t tokens = 0;
    for (const auto& p : sampler.pieces({0, 0, 0, w})) {
      const auto& d = corpus.documents()[static_cast<std::size_t>(p.document)];
      EXPECT_LE(d.token_begin, p.begin);
      EXPECT_LT(p.begin, p.end);
      EXPECT_LE(p.end, d.token_end);
      tokens += p.end - p.begin;
    }
    EXPECT_EQ(tokens, w < 3 ? 6 : 2);
    total += tokens;
  }
  EXPECT_EQ(total, 20);
}

// CASES A20: a draw of 24 is 24 draws of one, and the state is all there is to resume from.
TEST_F(SamplerTest, DrawsAreOneSequenceHoweverTheyAreCut) {
  const auto corpus = make({{100, 0}, {50, 1}, {70, 2}, {30, 1}}, {"a", "b", "c"});
  const SamplerOptions options{8, 11, {{"a", 1.0}, {"b", 2.0}, {"c", 0.5}}, OnExhausted::kWrap};
  const Sampler sampler(corpus, all_documents(corpus), options);
  auto state = sampler.initial_state();
  const auto straight = sampler.draw(state, 24);
  for (std::int64_t i = 0; i < 24; ++i) {
    EXPECT_EQ(straight[static_cast<std::size_t>(i)].number, i);
  }
  for (const std::int64_t step : {1, 2, 3, 5, 7, 23}) {
    auto other = sampler.initial_state();
    std::vector<SampleRef> drawn;
    while (other.next_sample < 24) {
      const auto part = sampler.draw(other, std::min<std::int64_t>(step, 24 - other.next_sample));
      drawn.insert(drawn.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(same(drawn, straight)) << step;
    EXPECT_EQ(other, state) << step;
  }
  auto unmoved = sampler.initial_state();
  EXPECT_TRUE(sampler.draw(unmoved, 0).empty());
  EXPECT_EQ(unmoved, sampler.initial_state());
}

// CASES A21: stop at sample 60 of 100, go on in another process to 2.5 epochs.
TEST_F(SamplerTest, ResumeInMidEpochSkipsAndRepeatsNothing) {
  const auto corpus = make(std::vector<SyntheticDocument>(100, {8}));
  const SamplerOptions options{8, 7, {}, OnExhausted::kWrap};
  const Sampler straight(corpus, all_documents(corpus), options);
  auto state = straight.initial_state();
  const auto all = straight.draw(state, 250);

  auto saved = straight.initial_state();
  const auto first = straight.draw(saved, 60);
  const Sampler resumed(corpus, all_documents(corpus), options);
  auto rest = resumed.draw(saved, 190);
  rest.insert(rest.begin(), first.begin(), first.end());
  EXPECT_TRUE(same(rest, all));
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    Numbers windows;
    for (std::size_t i = 0; i < 100; ++i) {
      windows.push_back(rest[100 * epoch + i].window);
      EXPECT_EQ(rest[100 * epoch + i].epoch, static_cast<std::int64_t>(epoch));
    }
    EXPECT_EQ(sorted(windows), range(0, 100));
  }
  EXPECT_EQ(rest[200].epoch, 2);
  EXPECT_EQ(offsets(resumed, rest), offsets(straight, all));
}

// CASES A16: a set of 2 samples, a batch of 24.
TEST_F(SamplerTest, ASetSmallerThanTheBatchWraps) {
  const auto corpus = make({{9}});
  const Sampler sampler(corpus, all_documents(corpus), {8, 7, {}, OnExhausted::kWrap});
  ASSERT_EQ(sampler.windows_per_epoch(0), 2);
  auto state = sampler.initial_state();
  const auto samples = sampler.draw(state, 24);
  ASSERT_EQ(samples.size(), 24u);
  std::set<std::int64_t> first_windows;
  for (std::int64_t i = 0; i < 24; ++i) {
    EXPECT_EQ(samples[static_cast<std::size_t>(i)].epoch, i / 2);
    if (i % 2 == 0) first_windows.insert(samples[static_cast<std::size_t>(i)].window);
  }
  EXPECT_EQ(first_windows.size(), 2u) << "the order changes from epoch to epoch";
  auto all = sorted(offsets(sampler, samples));
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<std::int64_t>(i) / 12);
  EXPECT_EQ(all.size(), 9u * 12);
}

// CASES A18: weights .98/.02 over tiny sets, 500 steps.
TEST_F(SamplerTest, MixtureWeightsAreKeptAndTinyDomainsWrap) {
  const auto corpus = make({{3, 1}, {3, 1}, {3, 1}, {500, 0}}, {"long", "multi_hop"});
  const SamplerOptions options{8, 7, {{"long", 0.02}, {"multi_hop", 0.98}}, OnExhausted::kWrap};
  const Sampler sampler(corpus, all_documents(corpus), options);
  auto state = sampler.initial_state();
  EXPECT_DOUBLE_EQ(state.weights[0], 0.02);
  const auto samples = sampler.draw(state, 12000);
  Numbers counts(2);
  for (const auto& s : samples) {
    EXPECT_GE(s.window, 0);
    EXPECT_LT(s.window, sampler.windows_per_epoch(s.domain));
    EXPECT_EQ(s.epoch,
              counts[static_cast<std::size_t>(s.domain)]++ / sampler.windows_per_epoch(s.domain));
  }
  EXPECT_EQ(counts, state.consumed);
  EXPECT_NEAR(static_cast<double>(counts[0]), 240, 62);  // 4 sigma
  // Weights may move between draws: the rest of the state stays.
  state.weights = {0.5, 0.5};
  Numbers later(2);
  for (const auto& s : sampler.draw(state, 10000)) ++later[static_cast<std::size_t>(s.domain)];
  EXPECT_NEAR(static_cast<double>(later[0]), 5000, 200);
}

TEST_F(SamplerTest, WeightsDefaultToTokensAndVeryRareDomainsAreDrawn) {
  const auto corpus = make({{300, 0}, {100, 1}, {50, 2}}, {"a", "b", "c"});
  const Sampler sampler(corpus, {0, 1}, {8, 7, {}, OnExhausted::kWrap});
  EXPECT_EQ(sampler.initial_state().weights, (std::vector<double>{0.75, 0.25, 0.0}));
  EXPECT_EQ(sampler.windows_per_epoch(2), 0);
  auto state = sampler.initial_state();
  for (const auto& s : sampler.draw(state, 2000)) EXPECT_NE(s.domain, 2);
  // A weight that is not named is 0; weights are scaled to sum 1.
  const Sampler named(corpus, all_documents(corpus), {8, 7, {{"c", 3.0}, {"a", 1.0}}, {}});
  EXPECT_EQ(named.initial_state().weights, (std::vector<double>{0.25, 0.0, 0.75}));
  const Sampler rare(corpus, all_documents(corpus), {8, 7, {{"a", 1.0}, {"b", 1e-4}}, {}});
  state = rare.initial_state();
  rare.draw(state, 200000);
  EXPECT_NEAR(static_cast<double>(state.consumed[1]), 20, 18);
}

TEST_F(SamplerTest, AddingADomainOrDocumentsElsewhereKeepsADomainsOrder) {
  const std::vector<SyntheticDocument> base(30, {8, 0});
  auto more = base;
  for (int i = 0; i < 5; ++i) more.push_back({8, 1});
  const auto one = make(base), two = make(more, {"a", "b"});
  const Sampler a(one, all_documents(one), {8, 7, {}, OnExhausted::kWrap});
  const Sampler b(two, all_documents(two), {8, 7, {{"a", 1.0}}, OnExhausted::kWrap});
  auto state_a = a.initial_state(), state_b = b.initial_state();
  EXPECT_TRUE(same(a.draw(state_a, 90), b.draw(state_b, 90)));
}

TEST_F(SamplerTest, SeedsDiffer) {
  const auto corpus = make(std::vector<SyntheticDocument>(30, {8}));
  const Sampler a(corpus, all_documents(corpus), {8, 7, {}, OnExhausted::kWrap});
  const Sampler b(corpus, all_documents(corpus), {8, 8, {}, OnExhausted::kWrap});
  auto state_a = a.initial_state(), state_b = b.initial_state();
  EXPECT_NE(offsets(a, a.draw(state_a, 30)), offsets(b, b.draw(state_b, 30)));
}

TEST_F(SamplerTest, TheOrderOfTheDocumentListDoesNotMatter) {
  const auto corpus = make(std::vector<SyntheticDocument>(10, {8}));
  const Sampler a(corpus, {1, 4, 7, 9}, {8, 7, {}, OnExhausted::kWrap});
  const Sampler b(corpus, {9, 7, 1, 4}, {8, 7, {}, OnExhausted::kWrap});
  auto state_a = a.initial_state(), state_b = b.initial_state();
  const auto drawn = offsets(a, a.draw(state_a, 4));
  EXPECT_EQ(drawn, offsets(b, b.draw(state_b, 4)));
  Numbers expected;
  for (const std::int64_t d : {1, 4, 7, 9}) {
    for (std::int64_t i = 0; i < 8; ++i) expected.push_back(8 * d + i);
  }
  EXPECT_EQ(sorted(drawn), expected);
}

TEST_F(SamplerTest, StopEndsWithTheFirstExhaustedDomain) {
  const auto corpus = make({{80, 0}, {16, 1}}, {"a", "b"});
  const SamplerOptions options{8, 7, {{"a", 0.5}, {"b", 0.5}}, OnExhausted::kStop};
  const Sampler sampler(corpus, all_documents(corpus), options);
  auto state = sampler.initial_state();
  std::int64_t drawn = 0;
  for (; drawn < 100; ++drawn) {
    const auto before = state;
    try {
      sampler.draw(state, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      const std::string message = error.what();
      EXPECT_NE(message.find("'b' is exhausted"), std::string::npos) << message;
      EXPECT_NE(message.find("2 windows"), std::string::npos) << message;
      EXPECT_NE(message.find("on_exhausted"), std::string::npos) << message;
      EXPECT_EQ(state, before);
      break;
    }
  }
  EXPECT_LT(drawn, 100);
  EXPECT_EQ(state.consumed[1], 2);
  const auto before = state;
  EXPECT_THROW(sampler.draw(state, 5), Error);
  EXPECT_EQ(state, before);
  // All of a domain, and nothing more, is fine.
  const Sampler only(corpus, {1}, {8, 7, {}, OnExhausted::kStop});
  auto exact = only.initial_state();
  EXPECT_EQ(only.draw(exact, 2).size(), 2u);
  EXPECT_THROW(only.draw(exact, 1), Error);
}

TEST_F(SamplerTest, RefusesWrongOptions) {
  const auto corpus = make({{8, 0}, {8, 1}}, {"law", "code"});
  const auto bad = [&](std::map<std::string, double> weights, const auto&... parts) {
    expect_error(
        ErrorKind::kUsage, [&] { Sampler(corpus, {0}, {8, 7, weights, OnExhausted::kWrap}); },
        parts...);
  };
  bad({{"cod", 1.0}}, "'cod'", "'law', 'code'");
  bad({{"law", -0.5}}, "'law'", "-0.5");
  bad({{"law", std::numeric_limits<double>::quiet_NaN()}}, "'law'", "nan");
  bad({{"law", std::numeric_limits<double>::infinity()}}, "'law'", "inf");
  bad({{"law", 0.0}, {"code", 0.0}}, "sum to 0");
  bad({{"law", 1.0}, {"code", 0.5}}, "'code'", "no training documents");
  expect_error(ErrorKind::kUsage, [&] { Sampler(corpus, {}, {8, 7, {}, {}}); }, "sum to 0");
  expect_error(ErrorKind::kUsage, [&] { Sampler(corpus, {0}, {0, 7, {}, {}}); }, "0 tokens");
  EXPECT_THROW(Sampler(corpus, {2}, {8, 7, {}, {}}), Error);
  EXPECT_THROW(Sampler(corpus, {-1}, {8, 7, {}, {}}), Error);
  EXPECT_THROW(Sampler(corpus, {0, 0}, {8, 7, {}, {}}), Error);
}

TEST_F(SamplerTest, RefusesForeignStates) {
  const auto corpus = make({{8}});
  const Sampler sampler(corpus, {0}, {8, 7, {}, OnExhausted::kWrap});
  for (const MixtureState& state : {MixtureState{{0.5, 0.5}, {0, 0}, 0}, MixtureState{{1.0}, {}, 0},
                                    MixtureState{{0.9}, {0}, 0}, MixtureState{{0.0}, {0}, 0},
                                    MixtureState{{std::nan("")}, {0}, 0}}) {
    auto copy = state;
    EXPECT_THROW(sampler.draw(copy, 1), Error);
  }
  EXPECT_THROW(sampler.pieces({0, 0, 0, 1}), Error);
  EXPECT_THROW(sampler.pieces({0, 0, 0, -1}), Error);
}

TEST_F(SamplerTest, ThreadsMayAskForPieces) {
  const auto corpus = make(std::vector<SyntheticDocument>(50, {5}));
  const Sampler sampler(corpus, all_documents(corpus), {8, 7, {}, OnExhausted::kWrap});
  auto state = sampler.initial_state();
  const auto samples = sampler.draw(state, 500);
  const auto expected = offsets(sampler, samples);
  std::vector<Numbers> results(4);
  {
    std::vector<std::jthread> pool;
    for (auto& result : results) {
      pool.emplace_back([&] { result = offsets(sampler, samples); });
    }
  }
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

// The sample order is a function of the content, not of file borders.
TEST_F(SamplerTest, FileBordersDoNotMatter) {
  auto content = synthetic_content({{17}, {3}, {40}, {9}, {1}, {33}});
  const Corpus one(write_synthetic(folder_, content, "one"));
  content.max_file_tokens = 10;
  const Corpus many(write_synthetic(folder_, content, "many"));
  const Sampler a(one, all_documents(one), {8, 7, {}, OnExhausted::kWrap});
  const Sampler b(many, all_documents(many), {8, 7, {}, OnExhausted::kWrap});
  auto state_a = a.initial_state(), state_b = b.initial_state();
  EXPECT_EQ(offsets(a, a.draw(state_a, 40)), offsets(b, b.draw(state_b, 40)));
}

}  // namespace
}  // namespace k25::data
