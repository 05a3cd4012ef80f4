// The table is consistent: no key twice, what it maps to exists, and every refusal has its reason.

#include "trainer/config/deepspeed/keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>

#include "trainer/config/parse.h"

namespace k25::trainer {
namespace {

TEST(DeepSpeedKeys, AreUniqueAndSayWhy) {
  std::set<std::string> paths;
  for (const DsKey& key : deepspeed_keys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path << " is listed twice";
    EXPECT_NE(std::string(key.row->note), "") << key.path;
    EXPECT_EQ(key.path.find(".."), std::string::npos) << key.path;
  }
  EXPECT_GT(paths.size(), 400u);
}

TEST(DeepSpeedKeys, MapToKeysOfOurs) {
  std::set<std::string> ours;
  for (const KeyInfo& key : config_keys()) ours.insert(key.path);
  for (const DsKey& key : deepspeed_keys()) {
    if (key.row->fate != DsFate::kMapped) continue;
    EXPECT_EQ(ours.count(key.row->detail), 1u) << key.path << " -> " << key.row->detail;
  }
}

TEST(DeepSpeedKeys, EveryPartHasAKeyThatRefusesIt) {
  const auto is = [](const std::string& path, DsFate fate) {
    return std::ranges::any_of(deepspeed_keys(), [&](const DsKey& key) {
      return key.path == path && key.row->fate == fate;
    });
  };
  for (const DsKey& key : deepspeed_keys()) {
    if (key.row->fate != DsFate::kPart) continue;
    bool found = false;
    for (std::string above = key.path; above.find('.') != std::string::npos;) {
      above.resize(above.rfind('.'));
      found = found || is(above, DsFate::kRefused) || is(above + ".enabled", DsFate::kSwitch) ||
              is(above + ".shared_parameters.enabled", DsFate::kSwitch);
    }
    EXPECT_TRUE(found) << key.path;
  }
}

TEST(DeepSpeedKeys, FatesAreToldInWords) {
  const auto row = [](DsFate fate, const char* detail) {
    return DsRow{"", "x", DsType::kAny, fate, detail, ""};
  };
  EXPECT_EQ(fate_text(row(DsFate::kRefused, "")), "refused");
  EXPECT_EQ(fate_text(row(DsFate::kRefused, "0 1")), "refused unless 0 or 1");
  EXPECT_EQ(fate_text(row(DsFate::kSwitch, "")), "refused if true");
  EXPECT_EQ(fate_text(row(DsFate::kMapped, "train.batch")), "mapped");
  EXPECT_EQ(fate_text(row(DsFate::kNoEffect, "")), "without effect");
  EXPECT_EQ(fate_text(row(DsFate::kPart, "")), "follows its feature");
}

}  // namespace
}  // namespace k25::trainer
