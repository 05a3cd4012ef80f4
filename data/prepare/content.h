#pragma once
// The work of `k25 prepare` up to what the corpus writer takes.

#include <filesystem>

#include "data/corpus/corpus.h"
#include "data/prepare/prepare.h"

namespace k25::data {

struct PreparedContent {
  CorpusContent content;
  PrepareReport report;
};

/// Reads the folders, trains a tokenizer into `work` (or takes the given one), and tokenises. Holds
/// one document's text at a time; tokens, labels and shingles are in memory.
PreparedContent prepare_content(const PrepareOptions& options, const std::filesystem::path& work);

}  // namespace k25::data
