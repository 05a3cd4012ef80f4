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
  m.state.config_digest = "d";
  m.state.init_digest = "i";
  m.state.slots = 12;
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
    write_text(folder / kManifestName, without.dump());
    expect_error(ErrorKind::kCheckpoint, [&] { read_manifest(folder.path()); }, "damaged", key);
  }
  for (const auto& [key, value] : whole["state"].items()) {
    Json without = whole;
    without["state"].erase(key);
    write_text(folder / kManifestName, without.dump());
    expect_error(ErrorKind::kCheckpoint, [&] { read_manifest(folder.path()); }, "damaged", key);
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
