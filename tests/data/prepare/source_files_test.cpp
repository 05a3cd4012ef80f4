#include "data/prepare/source_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/data/scratch_folder.h"

namespace k25::data {
namespace {

using namespace std::string_literals;
namespace fs = std::filesystem;

class SourceFilesTest : public ::testing::Test {
 protected:
  fs::path put(const std::string& name, const std::string& text) {
    const fs::path path = scratch_ / ("docs/" + name);
    fs::create_directories(path.parent_path());
    write_text(path, text);
    return path;
  }
  SourceFiles find() const { return find_source_files({scratch_ / "docs"}); }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const SourceFile& file : find().files) all.push_back(file.name);
    return all;
  }
  std::vector<Record> records(const SourceFile& file) const {
    std::vector<Record> all;
    for_each_record(file, [&](const Record& record) { all.push_back(record); });
    return all;
  }

  ScratchFolder scratch_;
};

TEST_F(SourceFilesTest, SortedByPathWithLinksAndHiddenNamesSkipped) {
  put("b/x.md", "x");
  put("b.txt", "y");
  put("a/z", "z");
  put("B", "w");
  put(".hidden", "h");
  put(".git/config", "c");
  fs::create_symlink("b.txt", scratch_ / "docs/link");
  fs::create_symlink("nowhere", scratch_ / "docs/dangling");
  fs::create_directory_symlink("a", scratch_ / "docs/folder-link");
  fs::create_directories(scratch_ / "docs/empty/folder");
  EXPECT_EQ(names(), (std::vector<std::string>{"B", "a/z", "b.txt", "b/x.md"}));
  EXPECT_EQ(find().links_skipped, 3);
  EXPECT_EQ(find().hidden_skipped, 2);
  EXPECT_EQ(find().domains, std::vector<std::string>{"docs"});
}

TEST_F(SourceFilesTest, DomainIsTheLastComponent) {
  put("a", "a");
  for (const std::string spelling : {"docs/", "docs/.", "docs//", "docs/../docs"}) {
    EXPECT_EQ(find_source_files({scratch_ / spelling}).domains[0], "docs") << spelling;
  }
  fs::create_directory_symlink("docs", scratch_ / "named");
  EXPECT_EQ(find_source_files({scratch_ / "named"}).domains[0], "named");
  EXPECT_EQ(find_source_files({scratch_ / "named"}).files.size(), 1u);
}

TEST_F(SourceFilesTest, TwoFoldersWithOneName) {
  fs::create_directories(scratch_ / "one/docs");
  put("a", "a");
  write_text(scratch_ / "one/docs/a", "a");
  expect_error(
      ErrorKind::kUsage, [&] { find_source_files({scratch_ / "docs", scratch_ / "one/docs/"}); },
      "two folders are called 'docs'", (scratch_ / "one/docs/").string());
  expect_error(
      ErrorKind::kUsage, [&] { find_source_files({scratch_ / "docs", scratch_ / "docs"}); },
      "two folders are called 'docs'");
  expect_error(ErrorKind::kUsage, [&] { find_source_files({"/"}); }, "'/' has no name");
}

TEST_F(SourceFilesTest, FoldersThatAreNone) {
  const fs::path file = put("a", "a");
  expect_error(
      ErrorKind::kUsage, [&] { find_source_files({scratch_ / "missing"}); },
      (scratch_ / "missing").string() + ": no such folder");
  expect_error(
      ErrorKind::kData, [&] { find_source_files({file}); }, file.string() + ": not a folder");
}

TEST_F(SourceFilesTest, FoldersWithoutDocuments) {
  fs::create_directories(scratch_ / "docs/inner");
  expect_error(
      ErrorKind::kData, [&] { find(); },
      (scratch_ / "docs").string() +
          ": the folder holds no documents (0 symbolic links and 0 hidden names skipped)");
  fs::create_symlink("/etc/hostname", scratch_ / "docs/link");
  put(".hidden", "x");
  expect_error(ErrorKind::kData, [&] { find(); }, "(1 symbolic links and 1 hidden names skipped)");
}

TEST_F(SourceFilesTest, FilesThatAreNoText) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", ": empty (0 bytes)"},
      {"ab\nc\xFFz", ":2: not UTF-8 text: byte 0xFF at byte offset 4"},
      {"caf\xE9 latin", ":1: not UTF-8 text: byte 0xE9 at byte offset 3"},
      {"\xFF\xFEh\0i\0"s, ":1: not UTF-8 text: byte 0xFF at byte offset 0"},
      {"cut off \xE4\xB8", ":1: not UTF-8 text: byte 0xE4 at byte offset 8"},
      {"\x1F\x8B\x08\x00gz"s, "byte 0x8B at byte offset 1"},
      {"h\0e\0l\0l\0o\0"s, ": a binary file, not text: 5 of its 10 bytes are NUL"},
      {std::string(4096, '\0'), ": a binary file, not text"},
      {"one\ntwo \xC3\xA9\xE2\x96\x81", ":2:6: U+2581 at byte offset 10"},
  };
  for (const auto& [bytes, reason] : cases) {
    const fs::path path = put("bad", bytes);
    expect_error(ErrorKind::kData, [&] { find(); }, path.string() + ":", reason);
  }
}

TEST_F(SourceFilesTest, BadBytesFarIntoAFileAcrossBlocks) {
  // Characters of two bytes across the borders of the blocks that are read, then a bad byte.
  std::string text = "x";
  while (text.size() < (3u << 20)) text += "\xC3\xA9";
  put("good", text + "\n");
  EXPECT_EQ(names().size(), 1u);
  const fs::path path = put("later", text + "\n\x80");
  expect_error(
      ErrorKind::kData, [&] { find(); },
      path.string() + ":2: not UTF-8 text: byte 0x80 at byte offset " +
          std::to_string(text.size() + 1));
}

TEST_F(SourceFilesTest, NamesAndThingsThatAreNoDocuments) {
  put("fine", "a");
  const fs::path latin = put("caf\xE9", "a");
  expect_error(ErrorKind::kData, [&] { find(); }, "caf\\xE9: the name is not UTF-8");
  fs::remove(latin);
  const fs::path newline = put("two\nlines", "a");
  expect_error(ErrorKind::kData, [&] { find(); }, "two\\x0Alines: the name");
  fs::remove(newline);
  ASSERT_EQ(::mkfifo((scratch_ / "docs/pipe").c_str(), 0600), 0);
  expect_error(
      ErrorKind::kData, [&] { find(); },
      (scratch_ / "docs/pipe").string() + ": neither a file nor a folder");
}

TEST_F(SourceFilesTest, TextIsTakenByteByByte) {
  const std::string text = "\xEF\xBB\xBF  a\r\n\r\n\tb  \n\n";
  put("a.bin", text);
  const auto all = records(find().files[0]);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].text(), text);
  EXPECT_EQ(all[0].source, "a.bin");
}

TEST_F(SourceFilesTest, JsonLines) {
  put("d.jsonl", "\xEF\xBB\xBF{\"text\": \"a\"}\r\n\n  \n{\"text\": \"b\", \"source\": \"s\"}");
  const auto file = find().files[0];
  EXPECT_EQ(file.form, FileForm::kJsonLines);
  EXPECT_FALSE(file.form_by_content);
  const auto all = records(file);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].text(), "a");
  EXPECT_EQ(all[0].source, "d.jsonl#1");
  EXPECT_EQ(all[1].source, "s#4");
}

TEST_F(SourceFilesTest, JsonLinesByContent) {
  const std::vector<std::string> lines = {
      "{\"text\": \"a\"}\n{\"text\": \"b\"}\n", "{\"text\": \"a\"}\nplain\n",
      "\xEF\xBB\xBF\n {\"text\": \"a\"}\n{\"te", "{\"te\n{\"text\": \"a\"}\n",
      "{\"id\": 1}\n{\"id\": 2}\n"};
  for (const std::string name : {"a", "a.txt", "a.json"}) {
    for (const std::string& text : lines) {
      put(name, text);
      const SourceFile file = find().files[0];
      EXPECT_EQ(file.form, FileForm::kJsonLines) << name << ": " << text;
      EXPECT_TRUE(file.form_by_content);
    }
    fs::remove(scratch_ / "docs" / name);
  }
  put("b", "{\"name\": \"a\"}\n");  // only ".json" makes one line a document
  EXPECT_EQ(find().files[0].form, FileForm::kJsonLines);
}

TEST_F(SourceFilesTest, JsonLinesByNameInAnyCase) {
  for (const std::string name : {"a.jsonl", "a.JSONL", "a.ndjson", "a.NdJson"}) {
    put(name, "plain\n");
    const SourceFile file = find().files[0];
    EXPECT_EQ(file.form, FileForm::kJsonLines) << name;
    EXPECT_FALSE(file.form_by_content);
    expect_error(ErrorKind::kData, [&] { records(file); }, name + ":1: column 1: broken JSON");
    fs::remove(file.path);
  }
}

TEST_F(SourceFilesTest, JsonThatHoldsNoRecordsIsText) {
  put("1-package.json", "{\n  \"name\": \"a\",\n  \"text\": [1]\n}\n");
  put("2-one-line.json", "{\"name\": \"a\"}\n");
  put("3-array.json", "[{\"name\": \"a\"}, 2, [{\"text\": \"a\"}]]\n");
  put("4-link.md", "[text](there)\n");
  put("5-blank", "\n \n");
  put("6-code.c", "{ int a; }\n{ }\n");
  put("7-locale.json", "{\n\"messages\": {\"yes\": \"ja\"}\n}\n");
  put("8-example.md", "A line:\n{\"text\": \"a\"}\n");
  const auto files = find().files;
  ASSERT_EQ(files.size(), 8u);
  for (const SourceFile& file : files) EXPECT_EQ(file.form, FileForm::kText) << file.name;
}

TEST_F(SourceFilesTest, RecordsThatAreNotOneALine) {
  for (const std::string name : {"a", "a.json"}) {
    for (const std::string text :
         {"[{\"text\": \"a\"}]", "[\n  {\"prompt\": \"a\",\n \"response\": \"b\"},\n {\"cut",
          "\xEF\xBB\xBF [1, {\"messages\": []}]"}) {
      put(name, text);
      expect_error(
          ErrorKind::kData, [&] { find(); }, name + ": a JSON array of records: write one object",
          "jq -c");
    }
    put(name, "{\n  \"text\": \"a\"\n}\n");
    expect_error(ErrorKind::kData, [&] { find(); }, name + ": one JSON record over several lines");
    fs::remove(scratch_ / "docs" / name);
  }
}

TEST_F(SourceFilesTest, BrokenJsonLinesNameFileLineAndColumn) {
  const fs::path path = put("d.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b\n");
  const auto file = find().files[0];
  expect_error(
      ErrorKind::kData, [&] { records(file); }, path.string() + ":3: column 12: broken JSON: ");
  const std::string good = "{\"text\": \"a\"}\n";
  for (const std::string bad : {"{\"cut", "plain", "{\"id\": 1}", "[1]"}) {
    const SourceFile other{put("d.txt", good + bad), "d.txt", 0, FileForm::kJsonLines, true};
    expect_error(
        ErrorKind::kData, [&] { records(other); },
        other.path.string() + ":2: ", "the file begins as JSON lines do");
  }
  put("d.jsonl", "\n\n");
  expect_error(
      ErrorKind::kData, [&] { records(file); }, path.string() + ": holds blank lines only");
}

}  // namespace
}  // namespace k25::data
