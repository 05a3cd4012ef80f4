// Which attention suits the documents of a batch.
#include "trainer/train/batch_upload.h"

#include <gtest/gtest.h>

namespace k25::trainer {
namespace {

using kernels::AttentionImplementation;

/// Sequences of documents of the given lengths, all of one sum.
data::Batch batch_of(const std::vector<std::vector<std::int32_t>>& documents) {
  data::Batch batch;
  std::int32_t tokens = 0;
  for (const std::int32_t length : documents.front()) tokens += length;
  batch.resize(static_cast<std::int64_t>(documents.size()), tokens);
  std::size_t at = 0;
  for (const auto& lengths : documents) {
    std::int32_t begin = 0;
    for (const std::int32_t length : lengths) {
      for (std::int32_t i = 0; i < length; ++i, ++at) {
        batch.doc_begin[at] = begin;
        batch.doc_end[at] = begin + length;
      }
      begin += length;
    }
  }
  return batch;
}

TEST(AttentionFor, WholeSequencesAreAutomatic) {
  EXPECT_EQ(attention_for(batch_of({{8}, {8}})), AttentionImplementation::kAutomatic);
}

TEST(AttentionFor, ManyShortDocumentsAreOurs) {
  EXPECT_EQ(attention_for(batch_of({{2, 2, 2, 2}, {4, 4}})), AttentionImplementation::kOwn);
  EXPECT_EQ(attention_for(batch_of({std::vector<std::int32_t>(8, 1)})),
            AttentionImplementation::kOwn);
}

// 7 + 1 of 8: 50 of 64 pairs. 4 + 4: 32 of 64. 3 + 5: 34 of 64.
TEST(AttentionFor, HalfOfThePairsDecides) {
  EXPECT_EQ(attention_for(batch_of({{7, 1}})), AttentionImplementation::kAutomatic);
  EXPECT_EQ(attention_for(batch_of({{4, 4}})), AttentionImplementation::kAutomatic);
  EXPECT_EQ(attention_for(batch_of({{3, 5}})), AttentionImplementation::kAutomatic);
  EXPECT_EQ(attention_for(batch_of({{3, 3, 2}})), AttentionImplementation::kOwn);
  EXPECT_EQ(attention_for(batch_of({{8}, {1, 1, 1, 1, 1, 1, 1, 1}})),
            AttentionImplementation::kAutomatic);  // 72 of 128
}

TEST(AttentionFor, EmptyRows) {
  data::Batch batch;
  batch.resize(2, 8);
  EXPECT_NO_THROW(attention_for(batch));
  batch.resize(0, 8);
  EXPECT_EQ(attention_for(batch), AttentionImplementation::kAutomatic);
}

}  // namespace
}  // namespace k25::trainer
