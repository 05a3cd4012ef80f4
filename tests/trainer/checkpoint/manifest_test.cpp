#include "trainer/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/data/scratch_folder.h"

namespace k25::trainer {
namespace {

using data::expect_error;
using data::ScratchFolder;
using data::write_text;
using Json = nlohmann::json;

Manifest example() {
  Manifest m;
  m.state.step = 3'000'000'000;
  m.state.label_tokens = std::int64_t{1} << 40;
  m.state.policy = {.updates = 7,
                    .consecutive_skips = 1,
                    .skipped = 2,
                    .empty = 3,
                    .beta1_product = 0.1 + 0.2,
                    .beta2_product = 1e-300};
  m.state.mixture = {.weights = {0.3, 0.7}, .consumed = {5, 6}, .next_sample = 11};
  m.state.best_step = 2'999'999'999;
  m.state.best_loss = 1.0 / 3;
  m.state.seed = ~std::uint64_t{0};
  m.state.corpus_digest = "c";
  m.state.order_digest = "o";
  m.state.tokenizer_digest = "t";
  m.state.config_digest = "d";
  m.state.init_digest = "i";
  m.state.slots = 12;
  m.state.batch = 24;
  m.state.fingerprint = "cpu=\"v3\"\n";
  m.config = "run: {dir: \"\xc3\xa4\"}\n";
  m.units = {{.name = "layers.0",
              .numel = 10,
              .parameters = {{"a", {2, 3}, 0}, {"b", {0}, 8}},
              .ranges = {{0, 0, 6}, {1, 6, 4}}}};
  m.files = {{"rank-00000.h5", {100, {"aa"}}}, {"rank-00001.h5", {90, {"bb"}}}};
  m.digests = {"x", "y", "z"};
  return m;
}

// With the digest of what it now says, as if it had been written so.
std::string signed_again(Json j) {
  j.erase("sha256");
  j["sha256"] = data::sha256_hex(j.dump());
  return j.dump();
}

TEST(Manifest, RoundTripKeepsEveryBit) {
  const ScratchFolder folder;
  const Manifest m = example();
  write_text(folder / kManifestName, to_json(m));
  const Manifest read = read_manifest(folder.path());
  EXPECT_EQ(read.state, m.state);
  EXPECT_EQ(read.config, m.config);
  EXPECT_EQ(read.digests, m.digests);
  EXPECT_EQ(to_json(read), to_json(m));
}

TEST(Manifest, MissingMeansUnfinished) {
  const ScratchFolder folder;
  expect_error(
      ErrorKind::kCheckpoint, [&] { read_manifest(folder.path()); }, folder.path().string(),
      "unfinished");
  expect_error(ErrorKind::kCheckpoint, [&] { read_manifest(folder / "nowhere"); }, "nowhere");
}

TEST(Manifest, EveryTruncationIsDamage) {
  const ScratchFolder folder;
  const std::string text = to_json(example());
  for (std::size_t n = 0; n + 2 < text.size(); n += 13) {
    write_text(folder / kManifestName, text.substr(0, n));
    expect_error(
        ErrorKind::kCheckpoint, [&] { read_manifest(folder.path()); }, kManifestName, "damaged");
  }
}

// Every key is needed: without it the manifest is refused by name.
TEST(Manifest, EveryMissingKeyIsDamage) {
  const ScratchFolder folder;
  const Json whole = Json::parse(to_json(example()));
  for (const auto& [key, value] : whole.items()) {
    Json without = whole;
    without.erase(key);
    write_text(folder / kManifestName, key == "sha256" ? without.dump() : signed_again(without));
    expect_error(ErrorKind::kCheckpoint, [&] { read_manifest(folder.path()); }, "damaged", key);
  }
  for (const auto& [key, value] : whole["state"].items()) {
    Json without = whole;
    without["state"].erase(key);
    write_text(folder / kManifestName, signed_again(without));
    if (key == "tokenizer_digest") {  // older checkpoints have none
      EXPECT_EQ(read_manifest(folder.path()).state.tokenizer_digest, "");
      continue;
    }
    expect_error(ErrorKind::kCheckpoint, [&] { read_manifest(folder.path()); }, "damaged", key);
  }
}

// Every leaf and every list or object: another type in its place is named by its key.
TEST(Manifest, EveryValueOfAnotherTypeIsNamed) {
  const ScratchFolder folder;
  const Json whole = Json::parse(to_json(example()));
  const auto expect_named = [&](const std::string& place, const std::string& key,
                                const Json& value) {
    Json other = whole;
    other[Json::json_pointer(place)] = value;
    write_text(folder / kManifestName, place == "/sha256" ? other.dump() : signed_again(other));
    expect_error(
        ErrorKind::kCheckpoint, [&] { read_manifest(folder.path()); }, "damaged ",
        "'" + key + "' is " + value.dump() + ", expected a");
  };
  expect_named("/sha256", "sha256", 1);
  expect_named("/format", "format", Json::array());
  expect_named("/version", "version", "1");
  expect_named("/config", "config", 7);
  expect_named("/units", "units", "x");
  expect_named("/units/0", "units[0]", 1);
  expect_named("/units/0/name", "units[0].name", 1);
  expect_named("/units/0/numel", "units[0].numel", "10");
  expect_named("/units/0/parameters/1/shape/0", "units[0].parameters[1].shape[0]", -1);
  expect_named("/units/0/parameters/0/offset", "units[0].parameters[0].offset", 1.5);
  expect_named("/units/0/ranges/1/begin", "units[0].ranges[1].begin", nullptr);
  expect_named("/files", "files", 3);
  expect_named("/files/1/blocks/0", "files[1].blocks[0]", 3);
  expect_named("/digests", "digests", "x");
  expect_named("/digests/v", "digests.v", 1);
  expect_named("/state/seed", "seed", "7");
  expect_named("/state/policy", "policy", "x");
  expect_named("/state/mixture/weights", "mixture.weights", 1.0);
  expect_named("/state/mixture/weights/1", "mixture.weights[1]", "x");
  for (const char* key : {"corpus_digest", "order_digest", "tokenizer_digest", "config_digest",
                          "init_digest", "fingerprint"}) {
    expect_named(std::string("/state/") + key, key, 5);
  }
}

// Every leaf: a number one higher, a text one character longer.
void change_leaf(Json& leaf) {
  if (leaf.is_number_float()) {
    leaf = leaf.get<double>() + 1.0;
  } else if (leaf.is_number()) {
    leaf = leaf.get<std::int64_t>() + 1;
  } else {
    leaf = leaf.get<std::string>() + "x";
  }
}

TEST(Manifest, EveryChangedValueIsFound) {
  const ScratchFolder folder;
  const Json whole = Json::parse(to_json(example()));
  const Json leaves = whole.flatten();
  int changed = 0;
  for (const auto& [place, value] : leaves.items()) {
    if (place == "/format" || place == "/version" || value.is_null() || value.is_structured()) {
      continue;
    }
    Json other = whole;
    change_leaf(other[Json::json_pointer(place)]);
    write_text(folder / kManifestName, other.dump());
    expect_error(
        ErrorKind::kCheckpoint, [&] { read_manifest(folder.path()); }, kManifestName, "SHA-256",
        "changed after it was written");
    ++changed;
  }
  EXPECT_GT(changed, 40);
}

TEST(Manifest, TheDigestIsOfTheContentAndNotOfItsSpacesAndOrder) {
  const ScratchFolder folder;
  const Json whole = Json::parse(to_json(example()));
  EXPECT_EQ(whole.at("sha256"), Json::parse(signed_again(whole)).at("sha256"));
  write_text(folder / kManifestName, whole.dump(7));
  EXPECT_EQ(read_manifest(folder.path()).state, example().state);
}

TEST(Manifest, WithoutItsDigestItIsRefusedWithTheMend) {
  const ScratchFolder folder;
  Json old = Json::parse(to_json(example()));
  old.erase("sha256");
  write_text(folder / kManifestName, old.dump());
  expect_error(
      ErrorKind::kCheckpoint, [&] { read_manifest(folder.path()); }, "'sha256'", "older k25",
      "--resume none");
}

TEST(Manifest, AFolderNamedForAStepHoldsThatStep) {
  const ScratchFolder root;
  Manifest m = example();
  m.state.step = 120;
  m.state.best_step = 80;
  const auto read_as = [&](const std::string& name) {
    std::filesystem::create_directories(root / name);
    write_text(root / name / kManifestName, to_json(m));
    return read_manifest(root / name).state.step;
  };
  for (const char* name : {"step-000120", "step-120", "step-000120.set-aside-1", "final", "step-",
                           "step-by-step", "step-000121b"}) {
    EXPECT_EQ(read_as(name), 120) << name;
  }
  EXPECT_EQ(read_manifest(root / "step-000120" / "").state.step, 120);
  for (const char* name : {"step-000121", "step-0", "step-1200", "step-000012.set-aside-1",
                           "step-99999999999999999999"}) {
    expect_error(
        ErrorKind::kCheckpoint, [&] { read_as(name); }, name, "says step 120", "step-000120");
  }
}

TEST(Manifest, AnotherFormatOrVersionIsNamed) {
  const ScratchFolder folder;
  Json j = Json::parse(to_json(example()));
  j["version"] = 2;
  write_text(folder / kManifestName, j.dump());
  expect_error(
      ErrorKind::kCheckpoint, [&] { read_manifest(folder.path()); }, "version 2", "version 1");
  j["version"] = 1;
  j["format"] = "k25-corpus";
  write_text(folder / kManifestName, j.dump());
  expect_error(ErrorKind::kCheckpoint, [&] { read_manifest(folder.path()); }, "k25-corpus");
}

TEST(Manifest, RangesAndNamesStayInside) {
  const ScratchFolder folder;
  const auto expect_refused = [&](const Manifest& m, const std::string& part) {
    write_text(folder / kManifestName, to_json(m));
    expect_error(ErrorKind::kCheckpoint, [&] { read_manifest(folder.path()); }, part);
  };
  for (const ManifestRange& range :
       {ManifestRange{2, 0, 1}, ManifestRange{-1, 0, 1}, ManifestRange{0, 5, 6},
        ManifestRange{0, -1, 1}, ManifestRange{0, 0, -1},
        ManifestRange{0, std::int64_t{1} << 62, std::int64_t{1} << 62}}) {
    Manifest m = example();
    m.units[0].ranges[0] = range;
    expect_refused(m, "layers.0");
  }
  for (const char* name : {"../rank-00000.h5", "/etc/passwd", "a/b.h5"}) {
    Manifest m = example();
    m.files[0].name = name;
    expect_refused(m, name);
  }
}

}  // namespace
}  // namespace k25::trainer
