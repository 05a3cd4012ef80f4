// Every way in which a corpus on disk can be wrong: one message, kData, naming file and values.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "data/corpus/corpus.h"
#include "data/io/atomic_file.h"
#include "data/io/h5_layout.h"
#include "nlohmann/json.hpp"
#include "tests/data/synthetic_corpus.h"

namespace k25::data {
namespace {

using nlohmann::json;

class Damage : public ::testing::Test {
 protected:
  Damage() : manifest_(write_synthetic(folder_, content())) {}

  static CorpusContent content() {
    auto c = synthetic_content({{300}, {200}, {500}});
    c.max_file_tokens = 500;
    c.spans = {{0, 1, 5}};
    return c;
  }
  std::filesystem::path file(const std::string& name) const { return folder_ / ("corpus/" + name); }

  template <class... Parts>
  void expect_bad(const Parts&... parts) const {
    for (const int threads : {1, 3}) {
      expect_error(ErrorKind::kData, [&] { Corpus(manifest_, threads); }, parts...);
    }
  }

  void store(json value) const {
    value.erase("digest");
    value["digest"] = sha256_hex(value.dump());
    write_text(manifest_, value.dump());
  }
  /// Changes the manifest and signs it again.
  template <class Change>
  void edit(Change change) const {
    json value = json::parse(original_);
    change(value);
    store(value);
  }
  /// Replaces a file by one made by `fill`, and the manifest's digest of it.
  template <class Fill>
  void replace_file(const H5Layout& layout, Fill fill) const {
    std::filesystem::remove(file("tokens-00000.h5"));
    H5Writer writer(file("tokens-00000.h5"), layout, ErrorKind::kData);
    fill(writer);
    const auto digest = writer.finish();
    edit([&](json& m) {
      m["files"][0]["size"] = digest.size;
      m["files"][0]["sha256"] = digest.blocks;
    });
  }

  class Rewriter;

  ScratchFolder folder_;
  std::filesystem::path manifest_;
  std::string original_ = read_file(manifest_, ErrorKind::kData);
};

/// Writes the first token file anew: another layout, another payload for one dataset, all else as
/// it was.
class Damage::Rewriter {
 public:
  explicit Rewriter(const Damage& test)
      : test_(test),
        good_(read_file(test.file("tokens-00000.h5"), ErrorKind::kData)),
        old_(read_h5_layout(test.file("tokens-00000.h5"), ErrorKind::kData)) {}

  void operator()(const H5Layout& layout, const std::string& dataset = "",
                  const std::vector<std::byte>& payload = {}) const {
    test_.replace_file(layout, [&](H5Writer& writer) {
      for (const auto& [name, ignored] : layout) {
        const H5Dataset& entry = old_.at(name);
        if (name == dataset) {
          writer.write(name, {0}, payload);
        } else if (entry.bytes() > 0) {
          const auto part = std::string_view(good_).substr(static_cast<std::size_t>(entry.offset),
                                                           static_cast<std::size_t>(entry.bytes()));
          writer.write(name, {0}, std::as_bytes(std::span(part)));
        }
      }
    });
  }

 private:
  const Damage& test_;
  std::string good_;
  H5Layout old_;
};

TEST_F(Damage, TheFixtureItselfIsFine) {
  EXPECT_EQ(Corpus(manifest_).info().tokens, 1000);
  edit([](json&) {});
  EXPECT_EQ(Corpus(manifest_).info().tokens, 1000);
}

TEST_F(Damage, ManifestThatIsNotJson) {
  const std::string path = manifest_.string();
  for (const std::string text :
       {"", "{", "hello", "{\"format\": \"k25-corpus\",}", "\xff\xfe", "[1"}) {
    write_text(manifest_, text);
    expect_bad(path, "damaged manifest", "not JSON", std::to_string(text.size()) + " bytes");
  }
  write_text(manifest_, "{\n  \"format\": nonsense\n}");
  expect_bad(path, "line 2");
  for (const auto& [text, type] : {std::pair{"[]", "array"}, {"null", "null"}, {"3", "number"}}) {
    write_text(manifest_, text);
    expect_bad(path + ": damaged manifest: holds a JSON " + type + ", expected an object");
  }
  const std::string deep = std::string(1000000, '[') + std::string(1000000, ']');
  write_text(manifest_, "{\"more\": " + deep + "," + original_.substr(1));
  expect_bad(path + ": damaged manifest: nested more than 16 deep");
  write_text(manifest_, original_.substr(0, original_.size() / 2));
  expect_bad(path, "not JSON");
  std::filesystem::remove(manifest_);
  expect_bad(path, "No such file");
}

TEST_F(Damage, ManifestWithoutAKey) {
  const json good = json::parse(original_);
  for (const auto& [key, ignored] : good.items()) {
    json value = good;
    value.erase(key);
    if (key == "digest") {
      write_text(manifest_, value.dump());
    } else {
      store(value);
    }
    expect_bad(manifest_.string(), "'" + key + "' is missing");
  }
  for (const auto* key : {"file", "tokens", "documents", "size", "sha256"}) {
    edit([&](json& m) { m["files"][1].erase(key); });
    expect_bad(manifest_.string(), "'files[1]." + std::string(key) + "' is missing");
  }
  for (const auto* key : {"file", "size", "sha256"}) {
    edit([&](json& m) { m["tokenizer"].erase(key); });
    expect_bad(manifest_.string(), "'tokenizer." + std::string(key) + "' is missing");
  }
}

TEST_F(Damage, ManifestWithAWrongValue) {
  const auto wrong = [&](const std::string& pointer, const json& value, const auto&... parts) {
    edit([&](json& m) { m[json::json_pointer(pointer)] = value; });
    expect_bad((folder_ / "corpus").string() + "/", parts...);
  };
  wrong("/format", "csv", "'format' is \"csv\"", "expected \"k25-corpus\"");
  wrong("/version", 2, "'version' is 2", "newer k25");
  wrong("/version", 0, "'version' is 0");
  wrong("/version", "1", "'version' is \"1\"", "integer");
  wrong("/tokens", -1, "'tokens' is -1", "integer from 0");
  wrong("/tokens", 1000.0, "'tokens' is 1000.0", "integer");
  wrong("/tokens", true, "'tokens' is true");
  wrong("/tokens", nullptr, "'tokens' is null");
  wrong("/tokens", std::uint64_t{1} << 63, "'tokens' is 9223372036854775808");
  wrong("/tokens", 999, "'files[1].tokens' is 500");
  wrong("/tokens", 1001, "'tokens' is 1001, expected 1000, the sum over 'files'");
  wrong("/vocab", 0, "'vocab' is 0");
  wrong("/vocab", std::int64_t{1} << 31, "'vocab' is 2147483648");
  wrong("/vocab", "big", "'vocab' is \"big\"");
  wrong("/end_of_document", 1001, "'end_of_document' is 1001", "to 1000");
  wrong("/end_of_document", -1, "'end_of_document' is -1");
  wrong("/domains", "a", "'domains' is \"a\"", "list");
  wrong("/domains", json{"a", "a"}, "'domains[1]'");
  wrong("/domains", json{1}, "'domains[0]' is 1", "string");
  wrong("/domains", json::array(), "tokens-00000.h5", "domain 0");
  wrong("/span_kinds", json::array(), "/spans", "kind 0");
  wrong("/token_type", "u64", "'token_type' is \"u64\"");
  wrong("/files", json::object(), "'files' is {}", "list");
  wrong("/files", json::array(), "'tokens' is 1000", "0, the sum");
  wrong("/files/0", 7, "'files[0]' is 7", "object");
  wrong("/files/0/sha256", "x", "'files[0].sha256'", "list");
  wrong("/files/0/sha256", json{std::string(64, '0')}, "tokens-00000.h5", "block at byte 0",
        std::string(64, '0'));
  wrong("/files/0/sha256", json::array(), "tokens-00000.h5", "0 block digests");
  wrong("/files/0/documents", 3, "tokens-00000.h5", "claims 3 documents", "holds 2");
  wrong("/tokenizer", "x", "'tokenizer'", "object");
}

TEST_F(Damage, ManifestChangedByHand) {
  json value = json::parse(original_);
  value["domains"][0] = "b";
  write_text(manifest_, value.dump());
  expect_bad(manifest_.string(), "'digest'", "was changed");
}

TEST_F(Damage, FileNamesStayInTheFolder) {
  write_text(folder_ / "outside.h5", "x");
  for (const std::string name :
       {"../outside.h5", "/etc/passwd", "..", ".", "", "sub/x.h5", "a\\b"}) {
    edit([&](json& m) { m["files"][0]["file"] = name; });
    expect_bad(manifest_.string(), "'files[0].file'", "in the manifest's folder");
    edit([&](json& m) { m["tokenizer"]["file"] = name; });
    expect_bad(manifest_.string(), "'tokenizer.file'", "in the manifest's folder");
  }
}

TEST_F(Damage, MissingTruncatedAndFlippedFiles) {
  const auto path = file("tokens-00001.h5");
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path));
  std::filesystem::copy_file(path, folder_ / "good");
  for (const std::int64_t keep : {size - 1, std::int64_t{96}, std::int64_t{0}}) {
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(keep));
    expect_bad(path.string(), "expected " + std::to_string(size) + " bytes",
               "has " + std::to_string(keep), "truncated or unfinished");
  }
  std::filesystem::remove(path);
  expect_bad(path.string(), "No such file");  // CASES A19
  std::filesystem::copy_file(folder_ / "good", path);
  const auto tokens = read_h5_layout(path, ErrorKind::kData).at("/tokens").offset;
  for (const std::int64_t at : {tokens + 17, size - 1}) {
    flip_byte(path, at);
    expect_bad(path.string(), "byte 0 ", "expected SHA-256");
    flip_byte(path, at);
  }
  EXPECT_EQ(Corpus(manifest_).info().tokens, 1000);
  write_text(file("tokenizer.model"), "not a tokenizeR");
  expect_bad(file("tokenizer.model").string(), "expected SHA-256");
  std::filesystem::remove(file("tokenizer.model"));
  expect_bad(file("tokenizer.model").string(), "No such file");
}

// CASES A06. The damage is signed, so that only the check itself can find it.
TEST_F(Damage, TokensOutsideTheVocabulary) {
  const auto layout = read_h5_layout(file("tokens-00000.h5"), ErrorKind::kData);
  const Rewriter copy_with(*this);
  const auto raw = [](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  std::vector<std::uint16_t> narrow(500, 0);
  narrow[321] = 1001;
  copy_with(layout, "/tokens", raw(narrow));
  expect_bad("tokens-00000.h5", "token 1001 at offset 321 >= vocab 1001");
  narrow[321] = 0;
  copy_with(layout, "/tokens", raw(narrow));
  EXPECT_EQ(Corpus(manifest_).info().tokens, 1000);
  narrow[299] = 5;
  copy_with(layout, "/tokens", raw(narrow));
  expect_bad("tokens-00000.h5", "doc-0", "token 5", "end-of-document token 0");

  auto wide_layout = layout;
  wide_layout.at("/tokens").type = H5Type::kU32;
  std::vector<std::uint32_t> wide(500, 0);
  copy_with(wide_layout, "/tokens", raw(wide));
  expect_bad("tokens-00000.h5", "/tokens holds u32, expected u16");
  // An odd byte count: tokens that are not of the promised width.
  auto odd_layout = layout;
  odd_layout.at("/tokens") = {H5Type::kU8, {999}};
  copy_with(odd_layout, "/tokens", std::vector<std::byte>(999));
  expect_bad("tokens-00000.h5", "/tokens holds u8, expected u16");
  auto short_layout = layout;
  short_layout.at("/tokens").shape = {499};
  copy_with(short_layout, "/tokens", std::vector<std::byte>(998));
  expect_bad("tokens-00000.h5", "claims 500 tokens", "/tokens holds 499");
  std::vector<std::uint8_t> labels(500, 1);
  labels[7] = 3;
  copy_with(layout, "/labels", raw(labels));
  expect_bad("tokens-00000.h5", "label 3 at offset 7");
}

/// What happens to a corpus in use.
class DamageInUse : public Damage {
 protected:
  DamageInUse()
      : path_(file("tokens-00000.h5")),
        layout_(read_h5_layout(path_, ErrorKind::kData)),
        written_(std::filesystem::last_write_time(path_)) {}

  void expect_bad_read(const std::string& part) const {
    std::vector<std::int32_t> tokens(500);
    std::vector<std::uint8_t> labels(500);
    expect_error(
        ErrorKind::kData, [&] { corpus_.read(0, 500, tokens.data(), labels.data()); },
        path_.string() + ": " + part);
    corpus_.read(500, 1000, tokens.data(), labels.data());  // the other file is as it was
  }
  void overwrite(const std::string& dataset, std::int64_t at, const std::string& bytes) const {
    std::fstream out(path_, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(layout_.at(dataset).offset + at);
    out << bytes;
    ASSERT_TRUE(out.good());
  }

  std::filesystem::path path_;
  H5Layout layout_;
  std::filesystem::file_time_type written_;
  Corpus corpus_{manifest_};
};

TEST_F(DamageInUse, AShortenedFile) {
  const auto size = std::filesystem::file_size(path_);
  std::filesystem::resize_file(path_, 3000);
  expect_bad_read("was shortened while it was in use (" + std::to_string(size) +
                  " bytes at first, now 3000)");
  std::filesystem::resize_file(path_, 0);
  expect_bad_read("was shortened while it was in use");
}

TEST_F(DamageInUse, AFileThatWasWrittenTo) {
  overwrite("/tokens", 20, std::string(2, '\0'));
  std::filesystem::last_write_time(path_, written_ + std::chrono::seconds(1));
  expect_bad_read("was written to while it was in use");
}

// The time of the last write does not always tell.
TEST_F(DamageInUse, TokensAndLabelsOutOfRange) {
  overwrite("/tokens", 24, "\xff\xff");
  std::filesystem::last_write_time(path_, written_);
  expect_bad_read("token 65535 at offset 12 >= vocab 1001");
  overwrite("/tokens", 24, std::string(2, '\0'));
  overwrite("/labels", 7, "\x03");
  std::filesystem::last_write_time(path_, written_);
  expect_bad_read("label 3 at offset 7, expected 0 or 1");
}

TEST_F(Damage, APipeInPlaceOfAFile) {
  for (const auto* name : {"manifest.json", "tokens-00001.h5", "tokenizer.model"}) {
    std::filesystem::rename(file(name), file("aside"));
    ASSERT_EQ(::mkfifo(file(name).c_str(), 0600), 0);
    expect_bad(file(name).string() + ": is no regular file");
    std::filesystem::remove(file(name));
    std::filesystem::rename(file("aside"), file(name));
  }
  EXPECT_EQ(Corpus(manifest_).info().tokens, 1000);
}

TEST_F(Damage, AManifestWithoutEnd) {
  std::filesystem::resize_file(manifest_, (std::uintmax_t{256} << 20) + 1);
  expect_bad(manifest_.string() + ": has 268435457 bytes, expected at most 268435456");
}

TEST_F(Damage, MissingTables) {
  const auto layout = read_h5_layout(file("tokens-00000.h5"), ErrorKind::kData);
  const Rewriter copy_with(*this);
  for (const auto* name : {"/tokens", "/labels", "/documents/cluster", "/documents/sha256_end",
                           "/spans/kind", "/clauses/end", "/token_bytes/bytes"}) {
    auto without = layout;
    without.erase(name);
    copy_with(without);
    expect_bad("tokens-00000.h5", std::string(name) + " is missing");
  }
  auto shorter = layout;
  shorter.at("/documents/topic").shape = {1};
  copy_with(shorter, "/documents/topic", std::vector<std::byte>(4));
  expect_bad("tokens-00000.h5", "/documents/topic has 1 rows, expected 2");
}

TEST_F(Damage, NarrowTokensForAWideVocabulary) {
  edit([](json& m) { m["vocab"] = 100000; });
  expect_bad(manifest_.string(), "'token_type' is \"u16\"", "\"u32\"", "100000");
}

TEST_F(Damage, WideTokensOutsideTheVocabulary) {
  auto content = synthetic_content({{100}});
  content.info.vocab = 100000;
  content.tokens[42] = 70001;
  manifest_ = write_synthetic(folder_, content, "wide");
  EXPECT_EQ(Corpus(manifest_).info().vocab, 100000);
  original_ = read_file(manifest_, ErrorKind::kData);
  edit([](json& m) { m["vocab"] = 1000; });
  expect_bad("tokens-00000.h5", "token 70001 at offset 42 >= vocab 1000");
}

// CASES A23: 2^31 + 10 tokens are claimed, 500 are there.
TEST_F(Damage, HeaderLargerThanTheFile) {
  const std::int64_t many = (std::int64_t{1} << 31) + 10;
  edit([&](json& m) {
    m["files"][0]["tokens"] = many;
    m["tokens"] = many + 500;
  });
  expect_bad("tokens-00000.h5", "claims 2147483658 tokens", "/tokens holds 500");
}

}  // namespace
}  // namespace k25::data
