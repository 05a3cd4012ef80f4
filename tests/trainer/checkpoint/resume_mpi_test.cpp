// Which checkpoint a run goes on from, and what becomes of the others.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/trainer/checkpoint/job.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/step_folder.h"

namespace k25::trainer {
namespace {

class Resume : public testing::Test {
 protected:
  Resume() : setup_(meshes().front()) {
    for (const std::int64_t step : {1, 2, 3}) {
      setup_.fill();
      CheckpointConfig config;
      config.keep = 9;
      const auto writer = setup_.writer(run_.path(), config);
      writer->save(state_at(step));
      writer->finish();
    }
  }
  std::string find(const std::string& resume) {
    notes_.clear();
    const auto target = find_resume_target(test_world().comm(), run_.path(), resume, notes_);
    return target ? target->filename().string() : "none";
  }
  // As a start does once nothing can refuse it any more.
  std::string find_and_start(const std::string& resume) {
    notes_.clear();
    const auto target = find_resume_target(test_world().comm(), run_.path(), resume, notes_);
    const std::string notes = parallel::from_rank0(test_world().comm(), "set aside", [&] {
      set_aside_for(run_.path(), resume, target, notes_);
      return nlohmann::json(notes_).dump();
    });
    notes_ = nlohmann::json::parse(notes).get<std::vector<std::string>>();
    return target ? target->filename().string() : "none";
  }
  fs::path step(std::int64_t n) const { return run_.path() / "checkpoints" / step_folder_name(n); }
  static void damage(const fs::path& file) {
    on_rank0([&] { fs::resize_file(file, fs::file_size(file) - 1); });
  }

  SharedFolder run_;
  Job setup_;
  std::vector<std::string> notes_;
};

TEST_F(Resume, AutoTakesTheNewestThatVerifies) {
  EXPECT_EQ(find("auto"), "step-000003");
  EXPECT_TRUE(notes_.empty());
  damage(step(3) / "rank-00000.h5");
  on_rank0([&] { fs::remove(step(2) / "manifest.json"); });
  EXPECT_EQ(find("auto"), "step-000001");
  ASSERT_EQ(notes_.size(), 2U);
  EXPECT_NE(notes_[0].find("truncated"), std::string::npos) << notes_[0];
  EXPECT_NE(notes_[1].find("unfinished"), std::string::npos) << notes_[1];
  damage(step(1) / "rank-00000.h5");
  expect_agreed(
      ErrorKind::kCheckpoint, [&] { find("auto"); }, std::string("only broken checkpoints"));
}

TEST_F(Resume, AutoSetsAsideWhatItPassesOver) {
  on_rank0([&] { fs::rename(step(3), step(7)); });
  damage(step(2) / "rank-00000.h5");
  EXPECT_EQ(find("auto"), "step-000001");
  EXPECT_TRUE(fs::exists(step(7)));  // looking changes nothing
  EXPECT_EQ(find_and_start("auto"), "step-000001");
  ASSERT_EQ(notes_.size(), 4U);
  EXPECT_NE(notes_[3].find("is now step-000007.set-aside-1"), std::string::npos) << notes_[3];
  EXPECT_FALSE(fs::exists(step(7)));
  EXPECT_TRUE(fs::exists(step(7).string() + ".set-aside-1/manifest.json"));
  EXPECT_TRUE(fs::exists(step(2).string() + ".set-aside-1/manifest.json"));
  EXPECT_EQ(find_and_start("auto"), "step-000001");
  EXPECT_TRUE(notes_.empty());
}

// A start that fails after it has set aside leaves everything as it was.
TEST_F(Resume, WhatWasSetAsideIsPutBack) {
  on_rank0([&] {
    data::write_text(run_.path() / "config.yaml", "old");
    const auto names = [&] {
      std::vector<std::string> found;
      for (const auto& entry : fs::recursive_directory_iterator(run_.path())) {
        found.push_back(entry.path().string());
      }
      std::sort(found.begin(), found.end());
      return found;
    };
    const std::vector<std::string> before = names();
    const std::vector<Renamed> all = set_aside_for(run_.path(), "none", std::nullopt, notes_);
    EXPECT_NE(names(), before);
    put_back(all);
    EXPECT_EQ(names(), before);
    put_back(set_aside_for(run_.path(), "step:1", step(1), notes_));
    EXPECT_EQ(names(), before);
  });
}

TEST_F(Resume, ARenamedCheckpointIsNotRemovedAsAnOldOne) {
  on_rank0([&] {
    fs::rename(step(2), run_.path() / "checkpoints" / "step-000000");
    const std::vector<std::string> stay = retain(run_.path(), 3, 1, std::nullopt);
    ASSERT_EQ(stay.size(), 1U);
    EXPECT_NE(stay[0].find("says step 2; give the folder back its name, step-000002"),
              std::string::npos)
        << stay[0];
    EXPECT_TRUE(fs::exists(run_.path() / "checkpoints" / "step-000000" / "manifest.json"));
    EXPECT_FALSE(fs::exists(step(1)));
  });
}

TEST_F(Resume, AutoInAFreshDirectoryFindsNone) {
  on_rank0([&] { fs::remove_all(run_.path() / "checkpoints"); });
  EXPECT_EQ(find("auto"), "none");
}

TEST_F(Resume, NoneSetsEverythingAside) {
  EXPECT_EQ(find("none"), "none");
  EXPECT_EQ(find("auto"), "step-000003");  // looking changes nothing
  on_rank0([&] { data::write_text(run_.path() / "config.yaml", "old"); });
  EXPECT_EQ(find_and_start("none"), "none");
  EXPECT_EQ(find("auto"), "none");
  EXPECT_TRUE(fs::exists(run_.path() / "checkpoints.before-1" / "step-000003" / "manifest.json"));
  EXPECT_TRUE(fs::exists(run_.path() / "config.yaml.before-1"));
  EXPECT_FALSE(fs::exists(run_.path() / "config.yaml"));
  EXPECT_FALSE(fs::exists(run_.path() / "latest"));
}

TEST_F(Resume, AStepSetsLaterOnesAside) {
  on_rank0([&] { write_pointer(run_.path(), "best", "step-000003"); });
  EXPECT_EQ(find("step:0002"), "step-000002");
  EXPECT_TRUE(fs::exists(step(3)));
  EXPECT_EQ(find_and_start("step:0002"), "step-000002");
  EXPECT_FALSE(fs::exists(step(3)));
  EXPECT_EQ(find("auto"), "step-000002");
  on_rank0([&] {
    EXPECT_EQ(read_pointer(run_.path(), "latest"), "step-000002");
    EXPECT_EQ(read_pointer(run_.path(), "best"), "");
  });
  expect_agreed(ErrorKind::kCheckpoint, [&] { find("step:3"); }, std::string("steps there: 1, 2"));
  for (const char* text : {"step:0", "step:99999999999999999999"}) {
    expect_agreed(
        ErrorKind::kCheckpoint, [&] { find(text); }, std::string(text), std::string("no such"));
  }
  for (const char* text : {"step:", "step:x", "step:-1", "step:2 ", "step:2x"}) {
    expect_agreed(
        ErrorKind::kUsage, [&] { find(text); }, std::string(text), std::string("is not a number"));
  }
}

TEST_F(Resume, ANamedBrokenTargetIsAnError) {
  damage(step(3) / "rank-00000.h5");
  expect_agreed(ErrorKind::kCheckpoint, [&] { find("step:3"); }, std::string("truncated"));
  expect_agreed(
      ErrorKind::kCheckpoint, [&] { find(run_.path().string()); }, std::string("truncated"));
  EXPECT_TRUE(fs::exists(step(3)));
}

TEST_F(Resume, APathElsewhereSetsThisRunAside) {
  const SharedFolder other;
  Job source(meshes().front());
  save(source, other.path(), 9);
  EXPECT_EQ(find(other.path().string()), "step-000009");
  EXPECT_TRUE(fs::exists(run_.path() / "checkpoints"));
  EXPECT_EQ(find_and_start(other.path().string()), "step-000009");
  EXPECT_FALSE(is_step_of(run_.path(), other.path() / "checkpoints" / "step-000009"));
  EXPECT_TRUE(fs::exists(run_.path() / "checkpoints.before-1"));
  EXPECT_EQ(find("auto"), "none");
  expect_agreed(
      ErrorKind::kCheckpoint, [&] { find((other.path() / "nowhere").string()); },
      std::string("nowhere"));
}

}  // namespace
}  // namespace k25::trainer
