// What a resumed run may change, and what not.
#include "trainer/train/adopt.h"

#include <gtest/gtest.h>

#include "parallel/comm/agree.h"

namespace k25::trainer {
namespace {

Config config() {
  Config c;
  c.run.seed = 7;
  c.reduce.slots = 4;
  c.data.sequence = 32;
  return c;
}

DataIdentity data_now() {
  return {.corpus_digest = "corpus",
          .order_digest = "order",
          .initial = {.weights = {0.25, 0.75}, .consumed = {0, 0}, .next_sample = 0}};
}

TrainState saved_state() {
  TrainState s;
  s.step = 10;
  s.label_tokens = 1000;
  s.policy.updates = 9;
  s.mixture = {.weights = {0.25, 0.75}, .consumed = {5, 15}, .next_sample = 20};
  s.best_step = 8;
  s.best_loss = 1.5;
  s.seed = 7;
  s.corpus_digest = "corpus";
  s.order_digest = "order";
  s.slots = 4;
  return s;
}

CheckpointInfo saved() {
  return {.folder = "run/step-10",
          .state = saved_state(),
          .config = "data:\n  train: corpus/manifest.json\n  sequence: 32\n"};
}

std::string refused(ErrorKind kind, const CheckpointInfo& checkpoint, const DataIdentity& now) {
  std::vector<std::string> warnings;
  try {
    adopt_state(checkpoint, config(), now, warnings);
  } catch (const parallel::AgreedError& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Adopt, TheSameRunGoesOnUnchanged) {
  std::vector<std::string> warnings;
  EXPECT_EQ(adopt_state(saved(), config(), data_now(), warnings), saved_state());
  EXPECT_TRUE(warnings.empty());
}

TEST(Adopt, AnotherSeedIsRefused) {
  CheckpointInfo s = saved();
  s.state.seed = 8;
  const std::string text = refused(ErrorKind::kUsage, s, data_now());
  EXPECT_TRUE(contains(text, "run.seed is 7") && contains(text, "with 8")) << text;
  EXPECT_TRUE(contains(text, "run/step-10")) << text;
}

TEST(Adopt, OtherDataAreRefusedWithBothDigests) {
  DataIdentity now = data_now();
  now.corpus_digest = "another";
  const std::string text = refused(ErrorKind::kData, saved(), now);
  EXPECT_TRUE(contains(text, "corpus corpus") && contains(text, "another")) << text;
  now = data_now();
  now.order_digest = "shuffled";
  const std::string documents = refused(ErrorKind::kData, saved(), now);
  EXPECT_TRUE(contains(documents, "run/step-10: data.validation changed")) << documents;
  EXPECT_TRUE(contains(documents, "(sample order order, now shuffled)")) << documents;
  EXPECT_FALSE(contains(documents, "data.sequence")) << documents;
  CheckpointInfo other = saved();
  other.config = "data:\n  sequence: 64\n";
  const std::string sequence = refused(ErrorKind::kData, other, now);
  EXPECT_TRUE(contains(sequence, "data.sequence changed since the checkpoint: 64 -> 32"))
      << sequence;
  EXPECT_FALSE(contains(sequence, "data.validation")) << sequence;
}

TEST(Adopt, OtherDataOnRequestStartOverAndForgetTheBestStep) {
  Config c = config();
  c.train.allow_data_change = true;
  DataIdentity now = data_now();
  now.corpus_digest = "another";
  now.initial = {.weights = {1.0}, .consumed = {0}, .next_sample = 0};
  std::vector<std::string> warnings;
  const TrainState s = adopt_state(saved(), c, now, warnings);
  EXPECT_EQ(warnings.size(), 1U);
  EXPECT_EQ(s.mixture.consumed, std::vector<std::int64_t>{0});
  EXPECT_EQ(s.mixture.weights, std::vector<double>{1.0});
  EXPECT_EQ(s.mixture.next_sample, 20);
  EXPECT_EQ(s.best_step, -1);
  EXPECT_EQ(s.step, 10);
  EXPECT_EQ(s.policy, saved().state.policy);
}

TEST(Adopt, AnotherTokenizerIsRefusedAlsoOnRequest) {
  CheckpointInfo s = saved();
  s.state.tokenizer_digest = "old pieces";
  DataIdentity now = data_now();
  now.corpus_digest = "another";
  now.tokenizer_digest = "new pieces";
  Config c = config();
  c.train.allow_data_change = true;
  std::vector<std::string> warnings;
  try {
    adopt_state(s, c, now, warnings);
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    for (const char* part :
         {"corpus corpus", "another", "old pieces", "new pieces", "--tokenizer"}) {
      EXPECT_TRUE(contains(error.what(), part)) << error.what();
    }
    EXPECT_FALSE(contains(error.what(), "allow_data_change")) << error.what();
  }
  now.tokenizer_digest = "old pieces";
  EXPECT_EQ(adopt_state(s, c, now, warnings).step, 10);
  EXPECT_THROW(require_same_tokenizer(s, "new pieces"), Error);
  require_same_tokenizer(s, "old pieces");
  s.state.tokenizer_digest.clear();  // an older checkpoint
  require_same_tokenizer(s, "new pieces");
}

TEST(Adopt, OtherWeightsHoldFromHere) {
  DataIdentity now = data_now();
  now.initial.weights = {0.5, 0.5};
  std::vector<std::string> warnings;
  const TrainState s = adopt_state(saved(), config(), now, warnings);
  EXPECT_TRUE(warnings.empty());  // warn_of_changes() tells
  EXPECT_EQ(s.mixture.weights, (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(s.mixture.consumed, saved().state.mixture.consumed);
}

}  // namespace
}  // namespace k25::trainer
