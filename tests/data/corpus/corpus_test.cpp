#include "data/corpus/corpus.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "data/io/atomic_file.h"
#include "data/io/h5_layout.h"
#include "tests/data/synthetic_corpus.h"

namespace k25::data {
namespace {

CorpusContent rich_content() {
  auto c = synthetic_content({{5, 0}, {1, 1}, {7, 1}, {3, 0}}, {"law", "code"});
  c.documents[1].source = std::string("b/\xff\"\\\n#3");
  c.documents[2].topic = 7;
  c.documents[2].hops = 3;
  c.documents[2].cluster = 42;
  c.labels[3] = 0;
  c.labels[8] = 0;
  c.spans = {{1, 9, 12}, {0, 2, 4}, {0, 8, 13}};
  c.clauses = {{5, 14, 15}};
  for (std::int64_t i = 0; i < c.info.vocab; ++i) {
    c.token_bytes.push_back(i == 0 ? "" : std::string(1, static_cast<char>(i)) + "x");
  }
  c.token_bytes[1] = std::string("\0y", 2);
  return c;
}

void expect_equal(const Corpus& corpus, const CorpusContent& content) {
  EXPECT_EQ(corpus.info().tokens, static_cast<std::int64_t>(content.tokens.size()));
  EXPECT_EQ(corpus.info().vocab, content.info.vocab);
  EXPECT_EQ(corpus.info().end_of_document, content.info.end_of_document);
  EXPECT_EQ(corpus.info().domains, content.info.domains);
  EXPECT_EQ(corpus.info().span_kinds, content.info.span_kinds);
  EXPECT_EQ(corpus.info().digest.size(), 64u);
  ASSERT_EQ(corpus.documents().size(), content.documents.size());
  for (std::size_t i = 0; i < content.documents.size(); ++i) {
    const Document &a = corpus.documents()[i], &b = content.documents[i];
    EXPECT_EQ(a.source, b.source);
    EXPECT_EQ(a.sha256, b.sha256);
    EXPECT_EQ(std::tie(a.domain, a.topic, a.hops, a.cluster, a.token_begin, a.token_end),
              std::tie(b.domain, b.topic, b.hops, b.cluster, b.token_begin, b.token_end));
  }
  std::vector<std::int32_t> tokens(content.tokens.size());
  std::vector<std::uint8_t> labels(content.tokens.size());
  corpus.read(0, corpus.info().tokens, tokens.data(), labels.data());
  EXPECT_EQ(tokens, content.tokens);
  EXPECT_EQ(labels, content.labels);
}

std::vector<std::int64_t> begins(std::span<const Span> spans) {
  std::vector<std::int64_t> all;
  for (const Span& s : spans) all.push_back(s.begin);
  return all;
}

TEST(Corpus, RoundTripsEveryTable) {
  const ScratchFolder folder;
  const auto content = rich_content();
  const auto manifest = write_synthetic(folder, content);
  const Corpus corpus(manifest);
  expect_equal(corpus, content);
  EXPECT_EQ(begins(corpus.spans()), (std::vector<std::int64_t>{2, 8, 9}));
  EXPECT_EQ(corpus.spans()[2].kind, 1);
  EXPECT_EQ(corpus.spans()[2].end, 12);
  ASSERT_EQ(corpus.clauses().size(), 1u);
  EXPECT_EQ(corpus.clauses()[0].kind, 5);
  EXPECT_EQ(corpus.token_bytes(0), "");
  EXPECT_EQ(corpus.token_bytes(1), std::string_view("\0y", 2));
  EXPECT_EQ(corpus.token_bytes(16), "\x10x");
  EXPECT_THROW(corpus.token_bytes(17), Error);
  EXPECT_THROW(corpus.token_bytes(-1), Error);
  EXPECT_EQ(read_file(corpus.tokenizer_path(), ErrorKind::kData), "not a tokenizer");
  EXPECT_EQ(folder.entries(), 2);  // the corpus and the dummy tokenizer
}

TEST(Corpus, FilesHoldAllTablesAndAlignedNarrowTokens) {
  const ScratchFolder folder;
  write_synthetic(folder, synthetic_content({{4}}));
  const auto layout = read_h5_layout(folder / "corpus/tokens-00000.h5", ErrorKind::kData);
  EXPECT_EQ(layout.at("/tokens").type, H5Type::kU16);
  EXPECT_EQ(layout.at("/tokens").offset % 4096, 0);
  for (const auto* name : {"/spans/kind", "/clauses/begin", "/anchors/node", "/token_bytes/end"}) {
    ASSERT_TRUE(layout.contains(name)) << name;
    EXPECT_EQ(layout.at(name).shape, std::vector<std::int64_t>{0}) << name;
  }
}

// CASES A06: ids never wrap.
TEST(Corpus, TheTokenTypeFollowsTheVocabulary) {
  for (const auto& [vocab, type] : {std::pair{65535, H5Type::kU16},
                                    {65536, H5Type::kU32},
                                    {163840, H5Type::kU32},
                                    {2147483647, H5Type::kU32}}) {
    const ScratchFolder folder;
    auto content = synthetic_content({{4}, {2}});
    content.info.vocab = vocab;
    content.tokens[1] = vocab - 1;
    const Corpus corpus(write_synthetic(folder, content));
    expect_equal(corpus, content);
    const auto layout = read_h5_layout(folder / "corpus/tokens-00000.h5", ErrorKind::kData);
    EXPECT_EQ(layout.at("/tokens").type, type) << vocab;
  }
}

TEST(Corpus, SeveralFilesReadLikeOne) {
  const ScratchFolder folder;
  auto content = rich_content();
  const Corpus one(write_synthetic(folder, content, "one"));
  content.max_file_tokens = 6;
  const Corpus many(write_synthetic(folder, content, "many"));
  EXPECT_TRUE(std::filesystem::exists(folder / "many/tokens-00002.h5"));
  EXPECT_FALSE(std::filesystem::exists(folder / "many/tokens-00003.h5"));
  expect_equal(many, content);
  EXPECT_EQ(begins(many.spans()), begins(one.spans()));
  EXPECT_EQ(begins(many.clauses()), begins(one.clauses()));
  EXPECT_EQ(many.token_bytes(16), one.token_bytes(16));
  for (std::int64_t begin = 0; begin <= 16; ++begin) {
    for (std::int64_t end = begin; end <= 16; ++end) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(end - begin) + 1, -7);
      std::vector<std::uint8_t> labels(tokens.size(), 9);
      many.read(begin, end, tokens.data(), labels.data());
      for (std::int64_t i = begin; i < end; ++i) {
        EXPECT_EQ(tokens[static_cast<std::size_t>(i - begin)],
                  content.tokens[static_cast<std::size_t>(i)]);
      }
      EXPECT_EQ(tokens.back(), -7);
      EXPECT_EQ(labels.back(), 9);
    }
  }
  std::int32_t token = 0;
  std::uint8_t label = 0;
  EXPECT_THROW(many.read(16, 17, &token, &label), Error);
  EXPECT_THROW(many.read(-1, 0, &token, &label), Error);
}

TEST(Corpus, SpansNearARangeHoldAllThatOverlap) {
  const ScratchFolder folder;
  auto content = synthetic_content({{40}, {40}});
  content.spans = {{0, 0, 30}, {0, 1, 3}, {1, 5, 6}, {0, 41, 42}, {0, 50, 60}, {1, 50, 51}};
  const Corpus corpus(write_synthetic(folder, content));
  for (std::int64_t begin = 0; begin < 80; ++begin) {
    for (std::int64_t end = begin; end <= 80; ++end) {
      std::vector<std::int64_t> expected, found;
      for (const Span& s : corpus.spans()) {
        if (s.begin < end && begin < s.end) expected.push_back(s.end);
      }
      for (const Span& s : corpus.spans_near(begin, end)) {
        if (s.begin < end && begin < s.end) found.push_back(s.end);
      }
      EXPECT_EQ(found, begin < end ? expected : found);
    }
  }
  EXPECT_EQ(corpus.spans_near(30, 41).size(), 0u);
}

TEST(Corpus, SameContentSameBytesAndDigest) {
  const ScratchFolder folder;
  const auto a = write_synthetic(folder, rich_content(), "a");
  const auto b = write_synthetic(folder, rich_content(), "b");
  EXPECT_EQ(read_file(a, ErrorKind::kData), read_file(b, ErrorKind::kData));
  auto other = rich_content();
  other.labels[2] = 0;
  const Corpus changed(write_synthetic(folder, other, "c"));
  EXPECT_NE(changed.info().digest, Corpus(a).info().digest);
}

TEST(Corpus, WorksFromAnyFolderAndWithThreads) {
  const ScratchFolder folder;
  auto content = synthetic_content({{70000}, {70000}});
  content.max_file_tokens = 70000;
  write_synthetic(folder, content);
  std::filesystem::rename(folder / "corpus", folder / "moved");
  const Corpus corpus(folder / "moved/manifest.json", 4);
  expect_equal(corpus, content);
  const auto old = std::filesystem::current_path();
  std::filesystem::current_path(folder / "moved");
  expect_equal(Corpus("manifest.json"), content);
  std::filesystem::current_path(old);
}

TEST(Corpus, AnEmptyCorpusIsACorpus) {
  const ScratchFolder folder;
  const Corpus corpus(write_synthetic(folder, synthetic_content({})));
  EXPECT_EQ(corpus.info().tokens, 0);
  EXPECT_TRUE(corpus.documents().empty());
}

TEST(WriteCorpus, RefusesContentThatIsNotACorpus) {
  const ScratchFolder folder;
  const auto bad = [&](auto change, const auto&... parts) {
    auto content = rich_content();
    change(content);
    expect_error(
        ErrorKind::kData, [&] { write_synthetic(folder, content); }, (folder / "corpus").string(),
        parts...);
    EXPECT_EQ(folder.entries(), 1) << "only the dummy tokenizer may be there";
  };
  bad([](CorpusContent& c) { c.tokens[2] = 17; }, "token 17 at offset 2 >= vocab 17");
  bad([](CorpusContent& c) { c.tokens[2] = -5; }, "token -5 at offset 2");
  bad([](CorpusContent& c) { c.tokens[4] = 1; }, "doc-0", "end-of-document token 0");
  bad([](CorpusContent& c) { c.labels[2] = 2; }, "label 2 at offset 2");
  bad([](CorpusContent& c) { c.labels.pop_back(); }, "15 labels for 16 tokens");
  bad([](CorpusContent& c) { c.info.end_of_document = 17; }, "17");
  bad([](CorpusContent& c) { c.documents[2].domain = 2; }, "doc-2", "domain 2");
  bad([](CorpusContent& c) { c.documents[2].token_begin = 7; }, "doc-2", "[7, 13)");
  bad([](CorpusContent& c) { c.documents.pop_back(); }, "end at token 13, expected 16");
  bad([](CorpusContent& c) { c.spans[0].end = 14; }, "/spans", "[9, 14)");
  bad([](CorpusContent& c) { c.spans[0].kind = 2; }, "/spans", "kind 2");
  bad([](CorpusContent& c) { c.clauses[0].end = c.clauses[0].begin; }, "/clauses");
  bad([](CorpusContent& c) { c.token_bytes.pop_back(); }, "16 tokens, expected vocab 17");
}

TEST(WriteCorpus, WholeOrNotAtAll) {
  const ScratchFolder folder;
  auto content = synthetic_content({{2000000}});
  content.tokenizer = folder / "absent.model";
  expect_error(
      ErrorKind::kData, [&] { write_corpus(folder / "corpus", content); },
      (folder / "absent.model").string(), "No such file");
  EXPECT_EQ(folder.entries(), 0);
  // CASES A35's kind: no room for the tokens.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error(
      ErrorKind::kData, [&] { write_synthetic(folder, content); }, "tokens-00000.h5",
      "File too large");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(folder.entries(), 1);
  content.info.domains = {"caf\xe9"};
  expect_error(ErrorKind::kData, [&] { write_synthetic(folder, content); }, "UTF-8");
  EXPECT_EQ(folder.entries(), 1);
}

TEST(WriteCorpus, NeverReplacesWhatIsThere) {
  const ScratchFolder folder;
  const auto content = synthetic_content({{4}});
  write_synthetic(folder, content);
  expect_error(
      ErrorKind::kData, [&] { write_synthetic(folder, content); }, (folder / "corpus").string(),
      "exists already");
  std::filesystem::create_directory(folder / "empty");
  expect_error(ErrorKind::kData, [&] { write_synthetic(folder, content, "empty"); }, "exists");
  write_text(folder / "file", "");
  expect_error(ErrorKind::kData, [&] { write_synthetic(folder, content, "file"); }, "exists");
  expect_error(ErrorKind::kData, [&] { write_synthetic(folder, content, "file/x"); }, "file/x");
  write_synthetic(folder, content, "new/nested/corpus/");  // parents are made, a slash is fine
  EXPECT_EQ(Corpus(folder / "new/nested/corpus/manifest.json").info().tokens, 4);
}

}  // namespace
}  // namespace k25::data
