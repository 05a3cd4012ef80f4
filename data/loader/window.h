#pragma once
// Writes one window into one row of a batch. Internal to data/loader.

#include <cstdint>
#include <span>

#include "data/corpus/corpus.h"
#include "data/loader/batch.h"
#include "data/sampler/sampler.h"

namespace k25::data {

/// Row `row` of an emptied batch = `pieces`, end to end; the rest is padding.
void fill_row(const Corpus& corpus, std::span<const Sampler::Piece> pieces, std::int64_t row,
              Batch& batch);

/// All rows empty, their tokens end_of_document.
void clear_batch(const Corpus& corpus, Batch& batch);

}  // namespace k25::data
