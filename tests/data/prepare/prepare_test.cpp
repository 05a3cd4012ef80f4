#include "data/prepare/prepare.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <set>
#include <tuple>

#include "data/corpus/corpus.h"
#include "data/io/atomic_file.h"
#include "data/io/block_digest.h"
#include "data/prepare/content.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/data/scratch_folder.h"

namespace k25::data {
namespace {

namespace fs = std::filesystem;

std::string sentence(int i) {
  return "Clause " + std::to_string(i) + ": the licensor grants licence number " +
         std::to_string(i * 37 % 101) + " to the licensee, who pays " + std::to_string(i * i) +
         " coins and keeps record " + std::to_string(i * 7919 % 9973) + " for audits.\n";
}
std::string sentences(int from, int to) {
  std::string text;
  for (int i = from; i < to; ++i) text += sentence(i);
  return text;
}

class PrepareTest : public ::testing::Test {
 protected:
  fs::path put(const std::string& name, const std::string& text) {
    const fs::path path = scratch_ / name;
    fs::create_directories(path.parent_path());
    write_text(path, text);
    return path;
  }
  PrepareOptions options() const {
    PrepareOptions o;
    o.folders = {scratch_ / "docs"};
    o.out = scratch_ / "corpus";
    o.vocab = 300;
    return o;
  }
  PreparedContent content(const PrepareOptions& o) { return prepare_content(o, scratch_.path()); }

  struct Opened {
    Corpus corpus;
    Tokenizer tokenizer;
    std::string text(const Document& d) const { return tokenizer.decode(ids(d)); }
    std::vector<std::int32_t> ids(const Document& d) const {
      std::vector<std::int32_t> all(static_cast<std::size_t>(d.token_end - d.token_begin));
      std::vector<std::uint8_t> labels(all.size());
      corpus.read(d.token_begin, d.token_end, all.data(), labels.data());
      return all;
    }
  };
  Opened open(const std::string& name = "corpus") const {
    Corpus corpus(scratch_ / (name + "/manifest.json"));
    Tokenizer tokenizer(corpus.tokenizer_path());
    return {std::move(corpus), std::move(tokenizer)};
  }
  void expect_nothing_left(std::ptrdiff_t entries) const {
    EXPECT_FALSE(fs::exists(scratch_ / "corpus"));
    EXPECT_EQ(scratch_.entries(), entries);
  }

  ScratchFolder scratch_;
};

TEST_F(PrepareTest, EveryDocumentComesBackFromTheCorpus) {
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"a.md", sentences(0, 40)},
      {"b", "\tTabs\r\n\r\n  and   spaces </s> \n"},
      {"c/d.txt", "\xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80"},
      {"e", "x"}};
  for (const auto& [name, text] : texts) put("docs/" + name, text);
  const PrepareReport report = prepare(options());
  EXPECT_EQ(report.files, 4);
  EXPECT_EQ(report.documents, 4);
  EXPECT_EQ(report.dropped, 0);

  const Opened opened = open();
  const CorpusInfo& info = opened.corpus.info();
  EXPECT_EQ(info.vocab, 300);
  EXPECT_EQ(info.tokens, report.tokens);
  EXPECT_EQ(info.end_of_document, 1);
  EXPECT_EQ(info.domains, std::vector<std::string>{"docs"});
  EXPECT_TRUE(opened.corpus.spans().empty());
  EXPECT_TRUE(opened.corpus.clauses().empty());
  ASSERT_EQ(opened.corpus.documents().size(), texts.size());
  std::int64_t next = 0, bytes = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Document& document = opened.corpus.documents()[i];
    EXPECT_EQ(document.source, texts[i].first);
    EXPECT_EQ(document.sha256, sha256_hex(texts[i].second));
    EXPECT_EQ(document.token_begin, next);
    EXPECT_EQ(document.cluster, static_cast<std::int32_t>(i));
    EXPECT_EQ(document.topic, -1);
    EXPECT_EQ(opened.text(document), texts[i].second);
    EXPECT_EQ(opened.ids(document).back(), 1) << "each ends with the end-of-document token";
    next = document.token_end;
    bytes += static_cast<std::int64_t>(texts[i].second.size());
  }
  EXPECT_EQ(next, info.tokens);
  EXPECT_EQ(report.bytes, bytes);
  for (std::int32_t id = 0; id < 300; ++id) {
    EXPECT_EQ(opened.corpus.token_bytes(id), opened.tokenizer.token_bytes(id));
  }
  EXPECT_EQ(scratch_.entries(), 2) << "docs and corpus, no work folder";
}

TEST_F(PrepareTest, OnlyResponsesCarryLabels) {
  put("docs/a.jsonl",
      "{\"prompt\": \"What is owed?\", \"response\": \"Nothing.\", \"topic\": 3, \"hops\": 2}\n"
      "{\"text\": \"plain\"}\n"
      "{\"messages\": [{\"role\": \"assistant\", \"content\": \"Hi.\"},"
      " {\"role\": \"user\", \"content\": \"Bye.\"}]}\n");
  PrepareOptions o = options();
  o.vocab = 262;
  const PreparedContent prepared = content(o);
  const CorpusContent& c = prepared.content;
  ASSERT_EQ(c.documents.size(), 3u);
  ASSERT_EQ(c.labels.size(), c.tokens.size());
  const auto labelled = [&](std::size_t d) {
    std::string text;
    for (auto t = c.documents[d].token_begin; t < c.documents[d].token_end; ++t) {
      const auto i = static_cast<std::size_t>(t);
      if (c.labels[i] == 0) continue;
      text += c.tokens[i] == 1 ? "<end>" : c.token_bytes[static_cast<std::size_t>(c.tokens[i])];
    }
    return text;
  };
  EXPECT_EQ(labelled(0), "Nothing.<end>");
  EXPECT_EQ(labelled(1), "plain<end>");
  EXPECT_EQ(labelled(2), "Hi.") << "the conversation ends on the user: no end to learn";
  EXPECT_EQ(c.documents[0].source, "a.jsonl#1");
  EXPECT_EQ(c.documents[0].topic, 3);
  EXPECT_EQ(c.documents[0].hops, 2);
  EXPECT_EQ(c.documents[1].topic, -1);
}

TEST_F(PrepareTest, HiddenNamesAreSkippedAndCounted) {
  put("docs/a.txt", sentences(0, 40));
  put("docs/.a.txt", "hidden");
  put("docs/.git/b.txt", "hidden");
  const PrepareReport report = prepare(options());
  EXPECT_EQ(report.files, 1);
  EXPECT_EQ(report.hidden_skipped, 2);
}

TEST_F(PrepareTest, ExactDuplicates) {
  put("docs/a", sentences(0, 30));
  put("docs/b", sentences(50, 80));
  put("docs/c", sentences(0, 30));
  put("docs/d.jsonl", "{\"text\": \"short\"}\n{\"text\": \"short\"}\n");
  for (const Duplicates rule : {Duplicates::kDropExact, Duplicates::kDropNear, Duplicates::kKeep}) {
    PrepareOptions o = options();
    o.duplicates = rule;
    const PreparedContent prepared = content(o);
    const bool keep = rule == Duplicates::kKeep;
    EXPECT_EQ(prepared.report.files, 4);
    EXPECT_EQ(prepared.report.exact_duplicates, 2);
    EXPECT_EQ(prepared.report.near_duplicates, 0);
    EXPECT_EQ(prepared.report.dropped, keep ? 0 : 2);
    EXPECT_EQ(prepared.report.documents, keep ? 5 : 3);
    std::vector<std::pair<std::string, std::int32_t>> kept;
    for (const Document& d : prepared.content.documents) kept.emplace_back(d.source, d.cluster);
    const std::vector<std::pair<std::string, std::int32_t>> all = {
        {"a", 0}, {"b", 1}, {"c", 0}, {"d.jsonl#1", 2}, {"d.jsonl#2", 2}};
    const std::vector<std::pair<std::string, std::int32_t>> firsts = {
        {"a", 0}, {"b", 1}, {"d.jsonl#1", 2}};
    EXPECT_EQ(kept, keep ? all : firsts);
    ASSERT_FALSE(prepared.report.notes.empty());
    EXPECT_EQ(prepared.report.notes[0],
              std::string("c is the same text as a: ") + (keep ? "kept" : "dropped"));
  }
}

TEST_F(PrepareTest, NearDuplicates) {
  put("docs/part", sentences(10, 30) + "A last word of its own.\n");
  put("docs/whole", sentences(0, 60));
  put("docs/other", sentences(100, 120));
  for (const Duplicates rule : {Duplicates::kDropExact, Duplicates::kDropNear}) {
    PrepareOptions o = options();
    o.duplicates = rule;
    const PreparedContent prepared = content(o);
    const bool drop = rule == Duplicates::kDropNear;
    EXPECT_EQ(prepared.report.near_duplicates, 1);
    EXPECT_EQ(prepared.report.dropped, drop ? 1 : 0);
    std::vector<std::pair<std::string, std::int32_t>> kept;
    for (const Document& d : prepared.content.documents) kept.emplace_back(d.source, d.cluster);
    const std::vector<std::pair<std::string, std::int32_t>> all = {
        {"other", 0}, {"part", 1}, {"whole", 1}};
    const std::vector<std::pair<std::string, std::int32_t>> rest = {{"other", 0}, {"whole", 1}};
    EXPECT_EQ(kept, drop ? rest : all);
    ASSERT_EQ(prepared.report.notes.size(), 1u);
    EXPECT_EQ(prepared.report.notes[0].find("part lies to 9"), 0u) << prepared.report.notes[0];
    EXPECT_NE(prepared.report.notes[0].find(drop ? "% in whole: dropped" : "% in whole: kept"),
              std::string::npos);
  }
  PrepareOptions strict = options();
  strict.containment = 1.0;
  EXPECT_EQ(content(strict).report.near_duplicates, 0);
}

TEST_F(PrepareTest, AFolderIsADomain) {
  put("law/a", sentences(0, 20));
  put("code/b", sentences(50, 70));
  PrepareOptions o = options();
  o.folders = {scratch_ / "law", scratch_ / "code/"};
  const PreparedContent prepared = content(o);
  EXPECT_EQ(prepared.content.info.domains, (std::vector<std::string>{"law", "code"}));
  EXPECT_EQ(prepared.content.documents[0].domain, 0);
  EXPECT_EQ(prepared.content.documents[1].domain, 1);
}

TEST_F(PrepareTest, SameInputSameBytes) {
  put("docs/a", sentences(0, 40));
  put("docs/b.jsonl", "{\"prompt\": \"p\", \"response\": \"r\"}\n");
  PrepareOptions o = options();
  prepare(o);
  o.out = scratch_ / "again";
  prepare(o);
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(scratch_ / "corpus")) {
    const std::string name = fs::relative(entry.path(), scratch_ / "corpus").string();
    names.insert(name);
    if (!entry.is_regular_file()) continue;
    EXPECT_TRUE(read_file(entry.path(), ErrorKind::kData) ==
                read_file(scratch_ / "again" / name, ErrorKind::kData))
        << name;
  }
  EXPECT_TRUE(names.contains("manifest.json"));
}

TEST_F(PrepareTest, ReusesATokenizer) {
  put("docs/a", sentences(0, 40));
  prepare(options());
  put("more/b", "Another text: \xE4\xB8\xAD.\n");
  PrepareOptions o = options();
  o.folders = {scratch_ / "more"};
  o.out = scratch_ / "second";
  o.tokenizer = open().corpus.tokenizer_path();
  o.vocab = 77;  // the model's own size counts
  prepare(o);
  const Opened second = open("second");
  EXPECT_EQ(second.corpus.info().vocab, 300);
  EXPECT_EQ(second.text(second.corpus.documents()[0]), "Another text: \xE4\xB8\xAD.\n");

  o.out = scratch_ / "third";
  o.tokenizer = put("broken.model", "no model");
  expect_error(ErrorKind::kData, [&] { prepare(o); }, (scratch_ / "broken.model").string());
  o.tokenizer = scratch_ / "missing.model";
  expect_error(
      ErrorKind::kUsage, [&] { prepare(o); }, (scratch_ / "missing.model").string(),
      "no such file");
  EXPECT_FALSE(fs::exists(scratch_ / "third"));
}

TEST_F(PrepareTest, BadDocumentsLeaveNothingBehind) {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"bad", "a\xFF", ":1: not UTF-8 text: byte 0xFF at byte offset 1"},
      {"bad", "", ": empty (0 bytes)"},
      {"bad", "a\xE2\x96\x81", ":1:2: U+2581 at byte offset 1"},
      {"bad.jsonl", "{\"text\": \"a\"}\n{\"text\": }\n", ":2: column 10: broken JSON"},
  };
  put("docs/a", sentences(0, 20));
  for (const auto& [name, bytes, reason] : cases) {
    const fs::path path = put("docs/" + name, bytes);
    expect_error(ErrorKind::kData, [&] { prepare(options()); }, path.string() + reason);
    expect_nothing_left(1);
    fs::remove(path);
  }
  fs::remove(scratch_ / "docs/a");
  expect_error(ErrorKind::kData, [&] { prepare(options()); }, "the folder holds no documents");
  expect_nothing_left(1);
}

TEST_F(PrepareTest, BadOptions) {
  put("docs/a", sentences(0, 20));
  const auto expect_usage = [&](auto change, const std::string& reason) {
    PrepareOptions o = options();
    change(o);
    expect_error(ErrorKind::kUsage, [&] { prepare(o); }, reason);
    expect_nothing_left(1);
  };
  expect_usage([](auto& o) { o.folders.clear(); }, "no folder is given");
  expect_usage([](auto& o) { o.out.clear(); }, "--out is empty");
  expect_usage([](auto& o) { o.vocab = 50; }, "--vocab 50 is outside [258, ");
  expect_usage([](auto& o) { o.vocab = 1'000'000; }, "--vocab 1000000 is outside [258, ");
  expect_usage([](auto& o) { o.containment = 0; }, "containment 0.000000 is outside (0, 1]");
  expect_usage([](auto& o) { o.containment = 1.5; }, "containment 1.500000 is outside (0, 1]");
  expect_usage([](auto& o) { o.containment = std::nan(""); }, "is outside (0, 1]");
  expect_usage([](auto& o) { o.max_file_tokens = 0; }, "max_file_tokens 0 is not positive");
}

TEST_F(PrepareTest, OutMustBeNewAndItsFolderThere) {
  put("docs/a", sentences(0, 20));
  put("corpus/keep", "mine");
  expect_error(
      ErrorKind::kData, [&] { prepare(options()); },
      (scratch_ / "corpus").string() + ": exists already: choose another --out or remove it");
  EXPECT_EQ(read_file(scratch_ / "corpus/keep", ErrorKind::kData), "mine");
  PrepareOptions o = options();
  o.out = scratch_ / "no/such/corpus";
  expect_error(
      ErrorKind::kData, [&] { prepare(o); }, (scratch_ / "no/such").string(), "create it first");
  fs::create_symlink("nowhere", scratch_ / "dangling");
  o.out = scratch_ / "dangling";
  expect_error(ErrorKind::kData, [&] { prepare(o); }, "exists already");
  EXPECT_EQ(scratch_.entries(), 3);
}

TEST_F(PrepareTest, OutWithASlash) {
  put("docs/a", sentences(0, 20));
  PrepareOptions o = options();
  o.out = (scratch_ / "corpus").string() + "/";
  EXPECT_EQ(prepare(o).documents, 1);
  EXPECT_TRUE(fs::exists(scratch_ / "corpus/manifest.json"));
}

TEST_F(PrepareTest, OutInsideAFolderOfDocumentsIsRefused) {
  put("docs/sub/a", sentences(0, 20));
  put("docs2/b", sentences(20, 40));
  fs::create_directory_symlink("docs", scratch_ / "link");
  PrepareOptions o = options();
  o.folders = {scratch_ / "docs2", scratch_ / "link/"};
  for (const char* out : {"docs/corpus", "docs/sub/corpus/", "docs/../docs2/corpus", "link/x"}) {
    o.out = scratch_ / out;
    expect_error(
        ErrorKind::kUsage, [&] { prepare(o); }, "--out " + o.out.string() + " lies in the folder",
        "choose an --out outside");
  }
  o.out = scratch_ / "docs2x";  // a neighbour whose name only begins alike
  EXPECT_EQ(prepare(o).documents, 2);
}

TEST_F(PrepareTest, TheWorkIsGivenToWhoeverStopsItAndTakenBack) {
  put("docs/a", sentences(0, 20));
  PrepareOptions o = options();
  std::vector<bool> given;
  o.when_stopped = [&](const std::function<void()>& discard) {
    given.push_back(static_cast<bool>(discard));
    if (!discard) return;
    EXPECT_EQ(scratch_.entries(), 3) << "docs, the lock, the work folder";
    discard();
    EXPECT_EQ(scratch_.entries(), 1);
  };
  expect_error(ErrorKind::kData, [&] { prepare(o); }, "cannot");
  EXPECT_EQ(given, (std::vector<bool>{true, false}));
  expect_nothing_left(1);
}

TEST_F(PrepareTest, WhatDeadProcessesLeftIsRemovedAndNothingElse) {
  put("docs/a", sentences(0, 20));
  put(".corpus.prepare-aB3xyz/corpus/tokens-00000.h5", "half");
  put(".corpus.prepare-lock", "process 1 on host gone");
  put(".corpus.prepare-longer1/mine", "x");
  put(".corpus.prepare-a.b/mine", "x");
  put(".corpus2.prepare-abcdef/mine", "x");
  EXPECT_EQ(prepare(options()).documents, 1);
  EXPECT_FALSE(fs::exists(scratch_ / ".corpus.prepare-aB3xyz"));
  EXPECT_FALSE(fs::exists(scratch_ / ".corpus.prepare-lock"));
  EXPECT_EQ(scratch_.entries(), 5) << "docs, corpus, and three that are not ours";
}

TEST_F(PrepareTest, OneProcessAtATimeMakesACorpus) {
  put("docs/a", sentences(0, 20));
  PrepareOptions o = options();
  int refused = 0;
  o.when_stopped = [&](const std::function<void()>& discard) {
    if (!discard) return;
    put(".corpus.prepare-stale1/x", "x");
    expect_error(
        ErrorKind::kData, [&] { prepare(options()); },
        (scratch_ / "corpus").string() + ": process " + std::to_string(::getpid()) + " on host ",
        "is preparing it", "choose another --out");
    EXPECT_TRUE(fs::exists(scratch_ / ".corpus.prepare-stale1")) << "only the owner cleans";
    PrepareOptions other = options();
    other.out = scratch_ / "other";
    EXPECT_EQ(prepare(other).documents, 1);
    ++refused;
  };
  EXPECT_EQ(prepare(o).documents, 1);
  EXPECT_EQ(refused, 1);
}

TEST_F(PrepareTest, ADomainThatLosesAllItsDocumentsIsAWarning) {
  put("one/a", sentences(0, 20));
  put("two/b", sentences(0, 20));
  put("two/c", sentences(0, 20));
  PrepareOptions o = options();
  o.folders = {scratch_ / "one", scratch_ / "two"};
  const PrepareReport report = prepare(o);
  ASSERT_EQ(report.warnings.size(), 1u);
  EXPECT_EQ(report.warnings[0],
            "domain 'two' is empty: its documents (2) are all dropped as duplicates of others; "
            "--keep-duplicates keeps exact ones");
  EXPECT_EQ(open().corpus.info().domains, (std::vector<std::string>{"one", "two"}));
  o.out = scratch_ / "again";
  o.duplicates = Duplicates::kKeep;
  EXPECT_TRUE(prepare(o).warnings.empty());
}

/// Files of this process may not grow beyond `bytes`, as on a full disk; undone at the end.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &old_), 0);
    const rlimit limited{bytes, old_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limited), 0);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_{};
  void (*handler_)(int);
};

TEST_F(PrepareTest, NoSpaceLeavesNothingBehind) {
  put("docs/a", sentences(0, 400));
  for (const rlim_t limit : {1000, 10'000}) {  // too little for the tokenizer, then for the corpus
    const FileSizeLimit full(limit);
    expect_error(ErrorKind::kData, [&] { prepare(options()); }, scratch_.path().string());
    expect_nothing_left(1);
  }
  EXPECT_EQ(prepare(options()).documents, 1);
}

TEST_F(PrepareTest, OutWhereNobodyCanWrite) {
  put("docs/a", sentences(0, 20));
  PrepareOptions o = options();
  o.out = "/dev/full/corpus";
  expect_error(ErrorKind::kData, [&] { prepare(o); }, "/dev/full/corpus: no folder /dev/full");
  o.out = "/proc/corpus";
  expect_error(ErrorKind::kData, [&] { prepare(o); }, "/proc/corpus: cannot write in /proc");
}

// The real input of the quickstart. Facts are computed here afresh, so that a distribution with
// other licences passes as well.
TEST_F(PrepareTest, LicencesOfTheSystem) {
  const fs::path licences = "/usr/share/common-licenses";
  std::int64_t files = 0, links = 0, bytes = 0;
  std::set<std::string> texts;
  for (const auto& entry : fs::directory_iterator(licences)) {
    if (entry.is_symlink()) {
      ++links;
    } else if (entry.is_regular_file()) {
      ++files;
      texts.insert(read_file(entry.path(), ErrorKind::kData));
    }
  }
  for (const std::string& text : texts) bytes += static_cast<std::int64_t>(text.size());
  PrepareOptions o = options();
  o.folders = {licences};
  o.vocab = 1000;
  const PrepareReport report = prepare(o);
  EXPECT_EQ(report.files, files);
  EXPECT_EQ(report.links_skipped, links);
  EXPECT_EQ(report.documents, static_cast<std::int64_t>(texts.size()));
  EXPECT_EQ(report.exact_duplicates, files - report.documents);
  EXPECT_EQ(report.bytes, bytes);
  EXPECT_LT(report.tokens, bytes / 2) << "1000 pieces compress English to under half";
  const Opened opened = open();
  EXPECT_EQ(opened.corpus.info().domains, std::vector<std::string>{"common-licenses"});
  std::set<std::string> seen;
  std::int32_t gfdl_12 = -1, gfdl_13 = -1, gpl_3 = -3;
  for (const Document& document : opened.corpus.documents()) {
    const std::string text = opened.text(document);
    EXPECT_EQ(text, read_file(licences / document.source, ErrorKind::kData));
    seen.insert(text);
    if (document.source == "GFDL-1.2") gfdl_12 = document.cluster;
    if (document.source == "GFDL-1.3") gfdl_13 = document.cluster;
    if (document.source == "GPL-3") gpl_3 = document.cluster;
  }
  EXPECT_EQ(seen, texts);
  EXPECT_EQ(gfdl_12, gfdl_13) << "one lies to 96 % in the other";
  EXPECT_NE(gfdl_12, gpl_3);
  EXPECT_GE(report.near_duplicates, 1);
}

}  // namespace
}  // namespace k25::data
