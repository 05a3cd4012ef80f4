// Writing half of corpus.h.

#include <algorithm>

#include "data/corpus/checks.h"
#include "data/corpus/corpus.h"
#include "data/corpus/manifest.h"
#include "data/corpus/tables.h"
#include "data/io/atomic_file.h"
#include "data/io/file_handle.h"
#include "fmt/format.h"

namespace k25::data {

namespace {

constexpr auto kKind = ErrorKind::kData;
constexpr std::int64_t kWriteTokens = std::int64_t{1} << 20;

/// Documents [first, last) of one file.
struct Part {
  std::size_t first = 0, last = 0;
  std::int64_t begin = 0, end = 0;  ///< tokens
};

std::vector<Part> cut_into_files(const CorpusContent& content) {
  std::vector<Part> parts(1);
  for (std::size_t i = 0; i < content.documents.size(); ++i) {
    const Document& d = content.documents[i];
    const Part& now = parts.back();
    if (now.last > now.first && d.token_end - now.begin > content.max_file_tokens) {
      parts.push_back({i, i, d.token_begin, d.token_begin});
    }
    parts.back().last = i + 1;
    parts.back().end = d.token_end;
  }
  return parts;
}

void check_content(const std::string& name, const CorpusContent& content) {
  const CorpusInfo& info = content.info;
  const auto tokens = static_cast<std::int64_t>(content.tokens.size());
  if (info.vocab < 1 || info.end_of_document < 0 || info.end_of_document >= info.vocab) {
    fail(kKind, fmt::format("{}: end-of-document token {} of a vocabulary of {}", name,
                            info.end_of_document, info.vocab));
  }
  if (content.labels.size() != content.tokens.size()) {
    fail(kKind, fmt::format("{}: {} labels for {} tokens", name, content.labels.size(), tokens));
  }
  if (!content.token_bytes.empty() &&
      static_cast<std::int64_t>(content.token_bytes.size()) != info.vocab) {
    fail(kKind, fmt::format("{}: bytes of {} tokens, expected vocab {}", name,
                            content.token_bytes.size(), info.vocab));
  }
  check_documents(name, info, content.documents, 0, tokens);
  check_tokens(name, content.tokens, 0, info.vocab);
  check_labels(name, content.labels, 0);
  for (const Document& d : content.documents) {
    const std::int32_t last = content.tokens[static_cast<std::size_t>(d.token_end - 1)];
    if (last != info.end_of_document) {
      fail_end_of_document(name, d, last, info.end_of_document);
    }
  }
}

std::vector<Span> sorted(std::vector<Span> spans) {
  std::stable_sort(spans.begin(), spans.end(),
                   [](const Span& a, const Span& b) { return a.begin < b.begin; });
  return spans;
}

std::span<const Span> spans_of(const std::vector<Span>& spans, const Part& part) {
  const auto before = [](std::int64_t at) { return [at](const Span& s) { return s.begin < at; }; };
  return {std::partition_point(spans.begin(), spans.end(), before(part.begin)),
          std::partition_point(spans.begin(), spans.end(), before(part.end))};
}

template <class Token>
void write_tokens(H5Writer& writer, std::span<const std::int32_t> tokens) {
  std::vector<Token> buffer;
  std::int64_t at = 0;
  while (!tokens.empty()) {
    const auto part = tokens.first(std::min<std::size_t>(kWriteTokens, tokens.size()));
    buffer.assign(part.begin(), part.end());
    const auto bytes = std::as_bytes(std::span(buffer));
    writer.write("/tokens", {at}, bytes);
    at += static_cast<std::int64_t>(bytes.size());
    tokens = tokens.subspan(part.size());
  }
}

FileDigest write_part(const std::filesystem::path& path, const CorpusContent& content,
                      const Part& part, const Columns& columns, H5Type token_type) {
  const std::int64_t count = part.end - part.begin;
  H5Layout layout = {{"/tokens", {token_type, {count}}}, {"/labels", {H5Type::kU8, {count}}}};
  for (const auto& [name, column] : columns) {
    const auto rows = static_cast<std::int64_t>(column.bytes.size()) / h5_type_bytes(column.type);
    layout[name] = {column.type, {rows}};
  }
  const auto slice = [&](const auto& all) {
    return std::span(all).subspan(static_cast<std::size_t>(part.begin),
                                  static_cast<std::size_t>(count));
  };
  H5Writer writer(path, layout, kKind);
  for (const auto& [name, dataset] : layout) {  // in file order, so that it is hashed on the way
    if (name == "/tokens" && token_type == H5Type::kU16) {
      write_tokens<std::uint16_t>(writer, slice(content.tokens));
    } else if (name == "/tokens") {
      write_tokens<std::uint32_t>(writer, slice(content.tokens));
    } else if (name == "/labels") {
      writer.write(name, {0}, std::as_bytes(slice(content.labels)));
    } else {
      writer.write(name, {0}, columns.at(name).bytes);
    }
  }
  return writer.finish();
}

void write_files(const std::filesystem::path& folder, const std::string& name,
                 const CorpusContent& content) {
  Manifest manifest;
  manifest.info = content.info;
  manifest.info.tokens = static_cast<std::int64_t>(content.tokens.size());
  manifest.token_type = content.info.vocab > kMaxVocabU16 ? H5Type::kU32 : H5Type::kU16;
  manifest.tokenizer = "tokenizer.model";
  write_file_atomically(folder / manifest.tokenizer, read_file(content.tokenizer, kKind), kKind);
  manifest.tokenizer_digest = digest_file(folder / manifest.tokenizer, kKind);
  const auto spans = sorted(content.spans), clauses = sorted(content.clauses);
  check_spans(name, "/spans", spans, content.documents,
              static_cast<std::int64_t>(content.info.span_kinds.size()));
  check_spans(name, "/clauses", clauses, content.documents, -1);
  for (const Part& part : cut_into_files(content)) {
    const auto documents = std::span(content.documents).subspan(part.first, part.last - part.first);
    const bool first = manifest.files.empty();
    const auto columns =
        make_columns(documents, spans_of(spans, part), spans_of(clauses, part),
                     first ? std::span(content.token_bytes) : std::span<const std::string>());
    ManifestFile entry;
    entry.name = fmt::format("tokens-{:05}.h5", manifest.files.size());
    entry.tokens = part.end - part.begin;
    entry.documents = static_cast<std::int64_t>(documents.size());
    entry.digest = write_part(folder / entry.name, content, part, columns, manifest.token_type);
    manifest.files.push_back(std::move(entry));
  }
  write_file_atomically(folder / "manifest.json", format_manifest(manifest), kKind);
}

}  // namespace

void write_corpus(const std::filesystem::path& out, const CorpusContent& content) {
  auto target = out.lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "corpus/"
  const auto refuse_existing = [&] {
    if (std::filesystem::symlink_status(target).type() == std::filesystem::file_type::not_found) {
      return;
    }
    fail(kKind, target.string() + ": exists already; remove it or choose another --out");
  };
  refuse_existing();
  check_content(target.string(), content);
  const auto folder = temporary_beside(target);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail(kKind, fmt::format("{}: cannot create the folder: {}", target.string(), error.message()));
  }
  try {
    write_files(folder, target.string(), content);
    refuse_existing();
    rename_durably(folder, target, kKind);
  } catch (...) {
    std::filesystem::remove_all(folder, error);
    throw;
  }
}

}  // namespace k25::data
