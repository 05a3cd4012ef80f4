#include "data/corpus/tables.h"

#include <cstring>

#include "fmt/format.h"

namespace k25::data {

namespace {

template <class T>
constexpr H5Type type_of() {
  if constexpr (std::is_same_v<T, std::int32_t>) return H5Type::kI32;
  if constexpr (std::is_same_v<T, std::int64_t>) return H5Type::kI64;
  return H5Type::kU8;
}

/// Column of one member of each row.
template <class Row, class T>
Column member_column(std::span<const Row> rows, T Row::* member) {
  Column column{type_of<T>(), std::vector<std::byte>(rows.size() * sizeof(T))};
  auto* out = column.bytes.data();
  for (const Row& row : rows) {
    std::memcpy(out, &(row.*member), sizeof(T));
    out += sizeof(T);
  }
  return column;
}

template <class Rows, class Text>
void add_strings(Columns& columns, const std::string& blob, const std::string& ends,
                 const Rows& rows, Text text) {
  Column bytes{H5Type::kU8, {}}, stops{H5Type::kI64, {}};
  for (const auto& row : rows) {
    const std::string& s = text(row);
    const auto part = std::as_bytes(std::span(s));
    bytes.bytes.insert(bytes.bytes.end(), part.begin(), part.end());
    const auto end = static_cast<std::int64_t>(bytes.bytes.size());
    const auto raw = std::as_bytes(std::span(&end, 1));
    stops.bytes.insert(stops.bytes.end(), raw.begin(), raw.end());
  }
  columns[blob] = std::move(bytes);
  columns[ends] = std::move(stops);
}

void add_spans(Columns& columns, const std::string& table, std::span<const Span> spans) {
  columns[table + "/kind"] = member_column(spans, &Span::kind);
  columns[table + "/begin"] = member_column(spans, &Span::begin);
  columns[table + "/end"] = member_column(spans, &Span::end);
}

template <class Row, class T>
void fill(const H5File& file, const std::string& name, const std::string& column, T Row::* member,
          std::vector<Row>& rows) {
  const auto values = file.values<T>(column, type_of<T>());
  if (values.size() != rows.size()) {
    fail(ErrorKind::kData,
         fmt::format("{}: {} has {} rows, expected {}", name, column, values.size(), rows.size()));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].*member = values[i];
}

}  // namespace

Columns make_columns(std::span<const Document> documents, std::span<const Span> spans,
                     std::span<const Span> clauses, std::span<const std::string> token_bytes) {
  Columns c;
  add_strings(c, "/documents/source_bytes", "/documents/source_end", documents,
              [](const Document& d) -> const std::string& { return d.source; });
  add_strings(c, "/documents/sha256_bytes", "/documents/sha256_end", documents,
              [](const Document& d) -> const std::string& { return d.sha256; });
  c["/documents/domain"] = member_column(documents, &Document::domain);
  c["/documents/topic"] = member_column(documents, &Document::topic);
  c["/documents/hops"] = member_column(documents, &Document::hops);
  c["/documents/cluster"] = member_column(documents, &Document::cluster);
  c["/documents/token_begin"] = member_column(documents, &Document::token_begin);
  c["/documents/token_end"] = member_column(documents, &Document::token_end);
  add_spans(c, "/spans", spans);
  add_spans(c, "/clauses", clauses);
  for (const auto* name : {"/anchors/begin", "/anchors/end", "/anchors/node"}) {
    c[name] = {H5Type::kI64, {}};
  }
  add_strings(c, "/token_bytes/bytes", "/token_bytes/end", token_bytes,
              [](const std::string& s) -> const std::string& { return s; });
  return c;
}

std::string_view StringColumn::operator[](std::size_t i) const {
  const auto begin = static_cast<std::size_t>(i == 0 ? 0 : ends[i - 1]);
  return {bytes.data() + begin, static_cast<std::size_t>(ends[i]) - begin};
}

StringColumn read_strings(const H5File& file, const std::string& name, const std::string& blob,
                          const std::string& ends) {
  StringColumn column{file.values<char>(blob, H5Type::kU8),
                      file.values<std::int64_t>(ends, H5Type::kI64)};
  std::int64_t last = 0;
  for (const std::int64_t end : column.ends) {
    if (end < last) last = -1;
    if (last < 0) break;
    last = end;
  }
  if (last != static_cast<std::int64_t>(column.bytes.size())) {
    fail(ErrorKind::kData,
         fmt::format("{}: {} does not fit {} of {} bytes", name, ends, blob, column.bytes.size()));
  }
  return column;
}

std::vector<Document> read_documents(const H5File& file, const std::string& name) {
  const auto source = read_strings(file, name, "/documents/source_bytes", "/documents/source_end");
  const auto sha256 = read_strings(file, name, "/documents/sha256_bytes", "/documents/sha256_end");
  if (sha256.size() != source.size()) {
    fail(ErrorKind::kData, fmt::format("{}: /documents/sha256_end has {} rows, expected {}", name,
                                       sha256.size(), source.size()));
  }
  std::vector<Document> documents(source.size());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    documents[i].source = source[i];
    documents[i].sha256 = sha256[i];
  }
  fill(file, name, "/documents/domain", &Document::domain, documents);
  fill(file, name, "/documents/topic", &Document::topic, documents);
  fill(file, name, "/documents/hops", &Document::hops, documents);
  fill(file, name, "/documents/cluster", &Document::cluster, documents);
  fill(file, name, "/documents/token_begin", &Document::token_begin, documents);
  fill(file, name, "/documents/token_end", &Document::token_end, documents);
  return documents;
}

std::vector<Span> read_spans(const H5File& file, const std::string& name,
                             const std::string& table) {
  std::vector<Span> spans(file.values<std::int32_t>(table + "/kind", H5Type::kI32).size());
  fill(file, name, table + "/kind", &Span::kind, spans);
  fill(file, name, table + "/begin", &Span::begin, spans);
  fill(file, name, table + "/end", &Span::end, spans);
  return spans;
}

}  // namespace k25::data
