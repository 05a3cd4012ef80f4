// The unigram numbers that validation is held against, counted by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/data/scratch_folder.h"
#include "trainer/eval/evaluate.h"

namespace k25::trainer {
namespace {

// Documents of given tokens and labels; token 0 ends each.
struct Text {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> labels;
};

data::Corpus corpus_of(const data::ScratchFolder& folder, const std::vector<Text>& texts,
                       std::int64_t vocab) {
  data::CorpusContent content;
  content.info.vocab = vocab;
  content.info.domains = {"a"};
  for (const Text& text : texts) {
    data::Document document;
    document.source = "doc-" + std::to_string(content.documents.size());
    document.sha256 = std::string(64, 'a');
    document.cluster = static_cast<std::int32_t>(content.documents.size());
    document.token_begin = static_cast<std::int64_t>(content.tokens.size());
    content.tokens.insert(content.tokens.end(), text.tokens.begin(), text.tokens.end());
    content.labels.insert(content.labels.end(), text.labels.begin(), text.labels.end());
    document.token_end = static_cast<std::int64_t>(content.tokens.size());
    content.documents.push_back(document);
  }
  content.tokenizer = folder / "dummy.model";
  data::write_text(content.tokenizer, "none");
  data::write_corpus(folder / "corpus", content);
  return data::Corpus(folder / "corpus/manifest.json");
}

TEST(UnigramBaseline, is_counted_over_targets_only) {
  const data::ScratchFolder folder;
  const data::Corpus corpus =
      corpus_of(folder,
                {{{1, 2, 2, 0}, {1, 1, 1, 1}},   // training: targets 2, 2, 0
                 {{3, 1, 2, 0}, {1, 0, 1, 1}}},  // validation: 2, 0; 1 is masked
                4);
  const UnigramBaseline baseline =
      unigram_baseline(corpus, {.train = {0}, .validation = {1}, .moved = 0});
  EXPECT_EQ(baseline.tokens, 2);
  EXPECT_NEAR(baseline.entropy, std::log(2.0), 1e-12);
  // Add-one counts of the training targets: 0 -> 2, 1 -> 1, 2 -> 3, 3 -> 1, of 7.
  EXPECT_NEAR(baseline.cross_entropy.value(), -0.5 * (std::log(3.0 / 7) + std::log(2.0 / 7)),
              1e-12);
}

TEST(UnigramBaseline, of_nothing_is_0) {
  const data::ScratchFolder folder;
  const data::Corpus corpus = corpus_of(folder, {{{1, 0}, {1, 1}}}, 4);
  const UnigramBaseline baseline =
      unigram_baseline(corpus, {.train = {0}, .validation = {}, .moved = 0});
  EXPECT_EQ(baseline.tokens, 0);
  EXPECT_EQ(baseline.entropy, 0.0);
  EXPECT_EQ(baseline.cross_entropy, 0.0);
}

TEST(UnigramBaseline, without_training_documents_has_no_cross_entropy) {
  const data::ScratchFolder folder;
  const data::Corpus corpus = corpus_of(folder, {{{1, 2, 0}, {1, 1, 1}}}, 4);
  const UnigramBaseline baseline =
      unigram_baseline(corpus, {.train = {}, .validation = {0}, .moved = 0});
  EXPECT_EQ(baseline.tokens, 2);
  EXPECT_NEAR(baseline.entropy, std::log(2.0), 1e-12);
  EXPECT_FALSE(baseline.cross_entropy.has_value());
}

}  // namespace
}  // namespace k25::trainer
