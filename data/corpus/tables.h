#pragma once
// The tables of a corpus file, as columns in HDF5 datasets. Internal to data/corpus.
//
//   /documents/{source_bytes,source_end,sha256_bytes,sha256_end}  strings: one blob and where each
//   ends /documents/{domain,topic,hops,cluster,token_begin,token_end} /spans/{kind,begin,end}
//   /clauses/{kind,begin,end}  /anchors/{begin,end,node} /token_bytes/{bytes,end}  in the first
//   file, empty in the others
//
// Token positions are those of the whole corpus. Each file holds the rows of its own documents.

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/corpus/corpus.h"
#include "data/io/h5_layout.h"

namespace k25::data {

struct Column {
  H5Type type = H5Type::kU8;
  std::vector<std::byte> bytes;
};
using Columns = std::map<std::string, Column>;

/// `spans` and `clauses` are those inside the documents.
Columns make_columns(std::span<const Document> documents, std::span<const Span> spans,
                     std::span<const Span> clauses, std::span<const std::string> token_bytes);

std::vector<Document> read_documents(const H5File& file, const std::string& name);
std::vector<Span> read_spans(const H5File& file, const std::string& name, const std::string& table);

struct StringColumn {
  std::vector<char> bytes;
  std::vector<std::int64_t> ends;
  std::string_view operator[](std::size_t i) const;
  std::size_t size() const { return ends.size(); }
};
/// Throws kData when the ends do not fit the blob.
StringColumn read_strings(const H5File& file, const std::string& name, const std::string& blob,
                          const std::string& ends);

}  // namespace k25::data
