#include "data/corpus/corpus.h"

#include <algorithm>

#include "data/corpus/checks.h"
#include "data/corpus/manifest.h"
#include "data/corpus/tables.h"
#include "data/io/sha256.h"
#include "fmt/format.h"

namespace k25::data {

namespace {

constexpr auto kKind = ErrorKind::kData;
constexpr std::int64_t kCheckTokens = std::int64_t{1} << 20;

struct TokenFile {
  H5File file;
  std::string name;  ///< as shown in messages
  std::int64_t begin = 0, end = 0;
  H5Dataset tokens, labels;

  /// `count` tokens from corpus offset `at` on.
  void read(std::int64_t at, std::int64_t count, std::int32_t* out, std::uint8_t* label) const {
    const auto n = static_cast<std::size_t>(count);
    if (tokens.type == H5Type::kU16) {
      std::vector<std::uint16_t> narrow(n);
      file.read_values(tokens, at - begin, std::span(narrow));
      std::copy_n(narrow.begin(), n, out);
    } else {
      file.read_values(tokens, at - begin, std::span(out, n));
    }
    file.read_values(labels, at - begin, std::span(label, n));
  }

  void check(std::int64_t at, std::int64_t count, const std::int32_t* out,
             const std::uint8_t* label, std::int64_t vocab) const {
    const auto n = static_cast<std::size_t>(count);
    check_tokens(name, std::span(out, n), at, vocab);
    check_labels(name, std::span(label, n), at);
  }
};

TokenFile open_tokens(const std::filesystem::path& path, const ManifestFile& entry, H5Type type,
                      std::int64_t begin) {
  TokenFile t{H5File(path, kKind), path.string(), begin, begin + entry.tokens, {}, {}};
  t.tokens = t.file.dataset("/tokens", type);
  t.labels = t.file.dataset("/labels", H5Type::kU8);
  for (const auto& [name, dataset] : {std::pair{"/tokens", &t.tokens}, {"/labels", &t.labels}}) {
    const std::int64_t count = dataset->bytes() / h5_type_bytes(dataset->type);
    if (count != entry.tokens) {
      fail(kKind, fmt::format("{}: the manifest claims {} tokens, {} holds {}", t.name,
                              entry.tokens, name, count));
    }
  }
  return t;
}

void check_payload(const TokenFile& t, std::int64_t vocab, int threads) {
  const std::int64_t count = t.end - t.begin;
  for_each_index((count + kCheckTokens - 1) / kCheckTokens, threads, [&](std::int64_t i) {
    const std::int64_t begin = t.begin + i * kCheckTokens;
    const std::int64_t n = std::min(kCheckTokens, t.end - begin);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(n));
    std::vector<std::uint8_t> labels(static_cast<std::size_t>(n));
    t.read(begin, n, tokens.data(), labels.data());
    t.check(begin, n, tokens.data(), labels.data(), vocab);
  });
}

}  // namespace

struct Corpus::Impl {
  std::filesystem::path folder;
  Manifest manifest;
  std::vector<TokenFile> files;
  std::vector<Document> documents;
  std::vector<Span> spans, clauses;
  std::vector<std::int64_t> span_reach;  ///< the largest end among the spans up to here
  StringColumn token_bytes;

  void open(const std::filesystem::path& manifest_path, int threads);
  void load_tables(const TokenFile& t, const ManifestFile& entry);
};

void Corpus::Impl::open(const std::filesystem::path& manifest_path, int threads) {
  folder = manifest_path.parent_path();
  manifest = read_manifest(manifest_path);
  // Sizes of all files first: the cheap check finds the common mistakes at once.
  verify_file(folder / manifest.tokenizer, manifest.tokenizer_digest, kKind);
  for (const auto& entry : manifest.files) {
    verify_file(folder / entry.name, entry.digest, kKind, Bytes{0}, Bytes{0});
  }
  std::int64_t begin = 0;
  for (const auto& entry : manifest.files) {
    verify_file(folder / entry.name, entry.digest, kKind, Bytes{0}, Bytes{-1}, threads);
    files.push_back(open_tokens(folder / entry.name, entry, manifest.token_type, begin));
    check_payload(files.back(), manifest.info.vocab, threads);
    load_tables(files.back(), entry);
    begin = files.back().end;
  }
  std::int64_t reach = 0;
  for (const Span& s : spans) span_reach.push_back(reach = std::max(reach, s.end));
}

void Corpus::Impl::load_tables(const TokenFile& t, const ManifestFile& entry) {
  auto rows = read_documents(t.file, t.name);
  if (static_cast<std::int64_t>(rows.size()) != entry.documents) {
    fail(kKind, fmt::format("{}: the manifest claims {} documents, the file holds {}", t.name,
                            entry.documents, rows.size()));
  }
  check_documents(t.name, manifest.info, rows, t.begin, t.end);
  for (const Document& d : rows) {
    std::int32_t last = 0;
    std::uint8_t label = 0;
    t.read(d.token_end - 1, 1, &last, &label);
    if (last != manifest.info.end_of_document) {
      fail_end_of_document(t.name, d, last, manifest.info.end_of_document);
    }
  }
  const auto file_spans = read_spans(t.file, t.name, "/spans");
  const auto file_clauses = read_spans(t.file, t.name, "/clauses");
  check_spans(t.name, "/spans", file_spans, rows,
              static_cast<std::int64_t>(manifest.info.span_kinds.size()));
  check_spans(t.name, "/clauses", file_clauses, rows, -1);
  spans.insert(spans.end(), file_spans.begin(), file_spans.end());
  clauses.insert(clauses.end(), file_clauses.begin(), file_clauses.end());
  documents.insert(documents.end(), std::make_move_iterator(rows.begin()),
                   std::make_move_iterator(rows.end()));
  auto bytes = read_strings(t.file, t.name, "/token_bytes/bytes", "/token_bytes/end");
  if (bytes.size() == 0) return;
  if (static_cast<std::int64_t>(bytes.size()) != manifest.info.vocab) {
    fail(kKind, fmt::format("{}: /token_bytes/end has {} rows, expected vocab {}", t.name,
                            bytes.size(), manifest.info.vocab));
  }
  token_bytes = std::move(bytes);
}

Corpus::Corpus(const std::filesystem::path& manifest, int threads)
    : impl_(std::make_unique<Impl>()) {
  impl_->open(manifest, threads);
}

Corpus::~Corpus() = default;
Corpus::Corpus(Corpus&&) noexcept = default;

const CorpusInfo& Corpus::info() const { return impl_->manifest.info; }
std::span<const Document> Corpus::documents() const { return impl_->documents; }
std::span<const Span> Corpus::spans() const { return impl_->spans; }
std::span<const Span> Corpus::clauses() const { return impl_->clauses; }

std::span<const Span> Corpus::spans_near(std::int64_t begin, std::int64_t end) const {
  const auto& reach = impl_->span_reach;
  const auto first = std::upper_bound(reach.begin(), reach.end(), begin) - reach.begin();
  const auto last = std::partition_point(impl_->spans.begin(), impl_->spans.end(),
                                         [&](const Span& s) { return s.begin < end; }) -
                    impl_->spans.begin();
  if (first >= last) return {};
  return std::span(impl_->spans)
      .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
}

void Corpus::read(std::int64_t begin, std::int64_t end, std::int32_t* out,
                  std::uint8_t* label) const {
  K25_CHECK(0 <= begin && begin <= end && end <= info().tokens,
            fmt::format("tokens [{}, {}) of a corpus of {}", begin, end, info().tokens));
  auto file = std::partition_point(impl_->files.begin(), impl_->files.end(),
                                   [&](const TokenFile& t) { return t.end <= begin; });
  for (; begin < end; ++file) {
    const std::int64_t n = std::min(end, file->end) - begin;
    file->file.require_unchanged();
    file->read(begin, n, out, label);
    file->check(begin, n, out, label, info().vocab);
    out += n;
    label += n;
    begin += n;
  }
}

std::filesystem::path Corpus::tokenizer_path() const {
  return impl_->folder / impl_->manifest.tokenizer;
}

std::string_view Corpus::token_bytes(std::int32_t id) const {
  K25_CHECK(id >= 0 && id < info().vocab,
            fmt::format("token {} of a vocabulary of {}", id, info().vocab));
  if (impl_->token_bytes.size() == 0) return {};
  return impl_->token_bytes[static_cast<std::size_t>(id)];
}

}  // namespace k25::data
