#pragma once
// Corpora of numbered tokens: token i of the corpus is i + 1, the last one of each document is 0,
// so that every token and every target can be told apart. No tokenizer is needed.

#include <numeric>
#include <string>
#include <vector>

#include "data/corpus/corpus.h"
#include "tests/data/scratch_folder.h"

namespace k25::data {

struct SyntheticDocument {
  std::int64_t tokens = 1;  ///< end of document included
  std::int32_t domain = 0;
  std::int32_t cluster = -1;  ///< -1: one of its own
};

inline CorpusContent synthetic_content(const std::vector<SyntheticDocument>& documents,
                                       const std::vector<std::string>& domains = {"a"}) {
  CorpusContent c;
  c.info.domains = domains;
  c.info.span_kinds = {"numeric", "multi_hop"};
  c.info.end_of_document = 0;
  std::int32_t number = 0;
  for (const auto& d : documents) {
    Document row;
    row.source = "doc-" + std::to_string(number);
    row.sha256 = std::string(64, 'a');
    row.domain = d.domain;
    row.cluster = d.cluster < 0 ? 100000 + number : d.cluster;
    row.token_begin = static_cast<std::int64_t>(c.tokens.size());
    row.token_end = row.token_begin + d.tokens;
    for (std::int64_t i = row.token_begin; i < row.token_end; ++i) {
      c.tokens.push_back(i + 1 == row.token_end ? 0 : static_cast<std::int32_t>(i + 1));
    }
    c.documents.push_back(row);
    ++number;
  }
  c.labels.assign(c.tokens.size(), 1);
  c.info.vocab = static_cast<std::int64_t>(c.tokens.size()) + 1;
  return c;
}

/// Writes `content` to FOLDER/NAME; returns the manifest's path.
inline std::filesystem::path write_synthetic(const ScratchFolder& folder, CorpusContent content,
                                             const std::string& name = "corpus") {
  content.tokenizer = folder / "dummy.model";
  write_text(content.tokenizer, "not a tokenizer");
  write_corpus(folder / name, content);
  return folder / name / "manifest.json";
}

inline std::vector<std::int64_t> all_documents(const Corpus& corpus) {
  std::vector<std::int64_t> all(corpus.documents().size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace k25::data
