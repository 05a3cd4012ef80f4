#include "data/corpus/manifest.h"

#include <algorithm>
#include <limits>
#include <set>

#include "data/io/atomic_file.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace k25::data {

namespace {

using nlohmann::json;

constexpr auto kFormat = "k25-corpus";
constexpr int kMaxDepth = 16;
constexpr Bytes kMaxBytes{std::int64_t{256} << 20};

/// A JSON value that knows where it stands, so that errors can say so.
class Node {
 public:
  Node(const std::filesystem::path& file, std::string key, const json& value)
      : file_(file), key_(std::move(key)), value_(value) {}

  Node operator[](const std::string& name) const {
    const std::string key = key_.empty() ? name : key_ + "." + name;
    if (!value_.is_object()) wrong("an object");
    const auto found = value_.find(name);
    if (found == value_.end()) fail_at(key, "is missing");
    return Node(file_, key, *found);
  }

  std::vector<Node> list() const {
    if (!value_.is_array()) wrong("a list");
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < value_.size(); ++i) {
      nodes.emplace_back(file_, fmt::format("{}[{}]", key_, i), value_[i]);
    }
    return nodes;
  }

  std::string text() const {
    if (!value_.is_string()) wrong("a string");
    return value_.get<std::string>();
  }

  std::int64_t integer(std::int64_t min,
                       std::int64_t max = std::numeric_limits<std::int64_t>::max()) const {
    const bool fits = value_.is_number_integer() &&
                      (!value_.is_number_unsigned() ||
                       value_.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
    if (!fits || value_.get<std::int64_t>() < min || value_.get<std::int64_t>() > max) {
      wrong(fmt::format("an integer from {} to {}", min, max));
    }
    return value_.get<std::int64_t>();
  }

  [[noreturn]] void wrong(const std::string& expected) const {
    std::string given = value_.dump(-1, ' ', true, json::error_handler_t::replace);
    if (given.size() > 60) given = given.substr(0, 57) + "...";
    fail_at(key_, fmt::format("is {}, expected {}", given, expected));
  }

 private:
  [[noreturn]] void fail_at(const std::string& key, const std::string& why) const {
    fail(ErrorKind::kData,
         fmt::format("{}: {} {}", file_.string(), key.empty() ? "the file" : "'" + key + "'", why));
  }

  const std::filesystem::path& file_;
  std::string key_;
  const json& value_;
};

json to_json(const FileDigest& digest) {
  return {{"size", digest.size}, {"sha256", digest.blocks}};
}

FileDigest read_digest(const Node& node) {
  FileDigest digest;
  digest.size = node["size"].integer(0);
  for (const auto& block : node["sha256"].list()) digest.blocks.push_back(block.text());
  return digest;
}

/// A manifest may not reach outside its folder.
std::string read_file_name(const Node& node) {
  const std::string name = node.text();
  const bool plain = !name.empty() && name != "." && name != ".." &&
                     name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  if (!plain) node.wrong("the name of a file in the manifest's folder");
  return name;
}

std::vector<std::string> read_names(const Node& node) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const auto& item : node.list()) {
    names.push_back(item.text());
    if (names.back().empty() || !seen.insert(names.back()).second) item.wrong("a name of its own");
  }
  return names;
}

std::string digest_of(json manifest) {
  manifest.erase("digest");
  return sha256_hex(manifest.dump());
}

H5Type read_token_type(const Node& root, std::int64_t vocab) {
  const auto node = root["token_type"];
  const std::string name = node.text();
  if (name != "u16" && name != "u32") node.wrong("\"u16\" or \"u32\"");
  if (name == "u16" && vocab > kMaxVocabU16) {
    node.wrong(fmt::format("\"u32\" for a vocab of {} (u16 ends at {})", vocab, kMaxVocabU16));
  }
  return name == "u16" ? H5Type::kU16 : H5Type::kU32;
}

[[noreturn]] void fail_damaged(const std::filesystem::path& path, const std::string& why) {
  fail(ErrorKind::kData, fmt::format("{}: damaged manifest: {}", path.string(), why));
}

json parse(const std::filesystem::path& path) {
  const std::string text = read_file(path, ErrorKind::kData, kMaxBytes);
  // The value is written out again, recursively: a deep one would take all of the stack.
  const auto is_shallow = [&](int depth, json::parse_event_t, const json&) {
    if (depth > kMaxDepth) fail_damaged(path, fmt::format("nested more than {} deep", kMaxDepth));
    return true;
  };
  json value;
  try {
    value = json::parse(text, is_shallow);
  } catch (const json::parse_error& error) {
    const std::string_view before = std::string_view(text).substr(0, error.byte);
    fail_damaged(path, fmt::format("its {} bytes are not JSON (line {})", text.size(),
                                   1 + std::count(before.begin(), before.end(), '\n')));
  }
  if (!value.is_object()) {
    fail_damaged(path, fmt::format("holds a JSON {}, expected an object", value.type_name()));
  }
  return value;
}

}  // namespace

Manifest read_manifest(const std::filesystem::path& path) {
  const json value = parse(path);
  const Node root(path, "", value);
  if (root["format"].text() != kFormat) root["format"].wrong(fmt::format("\"{}\"", kFormat));
  if (root["version"].integer(1) > kManifestVersion) {
    root["version"].wrong(
        fmt::format("at most {}: use a newer k25, or prepare the corpus again", kManifestVersion));
  }
  Manifest m;
  m.info.tokens = root["tokens"].integer(0);
  m.info.vocab = root["vocab"].integer(1, std::numeric_limits<std::int32_t>::max());
  m.info.end_of_document =
      static_cast<std::int32_t>(root["end_of_document"].integer(0, m.info.vocab - 1));
  m.info.domains = read_names(root["domains"]);
  m.info.span_kinds = read_names(root["span_kinds"]);
  m.token_type = read_token_type(root, m.info.vocab);
  m.tokenizer = read_file_name(root["tokenizer"]["file"]);
  m.tokenizer_digest = read_digest(root["tokenizer"]);
  std::int64_t left = m.info.tokens;
  for (const auto& node : root["files"].list()) {
    m.files.push_back({read_file_name(node["file"]), node["tokens"].integer(0, left),
                       node["documents"].integer(0), read_digest(node)});
    left -= m.files.back().tokens;
  }
  if (left != 0) {
    root["tokens"].wrong(fmt::format("{}, the sum over 'files'", m.info.tokens - left));
  }
  m.info.digest = digest_of(value);
  if (root["digest"].text() != m.info.digest) {
    root["digest"].wrong(m.info.digest + ": the manifest was changed after it was written");
  }
  return m;
}

std::string format_manifest(Manifest& manifest) {
  const CorpusInfo& info = manifest.info;
  json tokenizer = to_json(manifest.tokenizer_digest);
  tokenizer["file"] = manifest.tokenizer;
  json files = json::array();
  for (const auto& file : manifest.files) {
    json entry = to_json(file.digest);
    entry["file"] = file.name;
    entry["tokens"] = file.tokens;
    entry["documents"] = file.documents;
    files.push_back(std::move(entry));
  }
  json root = {{"format", kFormat},
               {"version", kManifestVersion},
               {"tokens", info.tokens},
               {"vocab", info.vocab},
               {"end_of_document", info.end_of_document},
               {"domains", info.domains},
               {"span_kinds", info.span_kinds},
               {"token_type", h5_type_name(manifest.token_type)},
               {"tokenizer", std::move(tokenizer)},
               {"files", std::move(files)}};
  try {
    manifest.info.digest = digest_of(root);
  } catch (const json::type_error&) {
    fail(ErrorKind::kData, "the name of a domain or span kind is not UTF-8");
  }
  root["digest"] = manifest.info.digest;
  return root.dump(2) + "\n";
}

}  // namespace k25::data
