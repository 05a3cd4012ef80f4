// Pointers, retention, moving into place, and the lock of a run directory.
#include "trainer/checkpoint/files.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <set>

#include "tests/data/scratch_folder.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/step_folder.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;
using data::expect_error;
using data::ScratchFolder;
using data::write_text;

void make_steps(const fs::path& run, const std::vector<std::int64_t>& steps) {
  for (const std::int64_t step : steps) {
    const fs::path folder = run / "checkpoints" / step_folder_name(step);
    fs::create_directories(folder);
    write_text(folder / "rank-00000.h5", "x");
  }
}

std::vector<std::int64_t> steps_in(const fs::path& run) {
  std::vector<std::int64_t> steps;
  for (const StepFolder& step : step_folders(run)) steps.push_back(step.step);
  return steps;
}

using Steps = std::vector<std::int64_t>;

TEST(StepFolders, OnlyFinishedOnesInOrderOfNumber) {
  const ScratchFolder run;
  EXPECT_EQ(steps_in(run.path()), Steps{});
  make_steps(run.path(), {20, 3, 1'000'000, 999'999});
  for (const char* other : {"step-000007.tmp", "step-", "step-x", "step-000004.set-aside-1",
                            "step-00000000000000000000001", "steps-1"}) {
    fs::create_directories(run.path() / "checkpoints" / other);
  }
  EXPECT_EQ(steps_in(run.path()), (Steps{3, 20, 999'999, 1'000'000}));
}

TEST(StepFolders, WhatCannotBeReadIsAnErrorAndNotAnEmptyRun) {
  const ScratchFolder run;
  write_text(run / "checkpoints", "a file");
  expect_error(
      ErrorKind::kCheckpoint, [&] { step_folders(run.path()); }, "checkpoints", "Not a directory");
}

TEST(Retention, KeepsTheNewest) {
  const ScratchFolder run;
  make_steps(run.path(), {1, 2, 3, 4, 5});
  retain(run.path(), 5, 2, std::nullopt);
  EXPECT_EQ(steps_in(run.path()), (Steps{4, 5}));
}

TEST(Retention, KeepsTheNewestEvenWhenNoneIsToBeKept) {
  const ScratchFolder run;
  make_steps(run.path(), {1, 2});
  retain(run.path(), 2, 0, std::nullopt);
  EXPECT_EQ(steps_in(run.path()), Steps{2});
}

TEST(Retention, KeepsTheBestAndTheOneResumedFrom) {
  const ScratchFolder run;
  make_steps(run.path(), {1, 2, 3, 4, 5, 6});
  write_pointer(run.path(), "best", step_folder_name(3));
  retain(run.path(), 6, 2, run.path() / "checkpoints" / "step-000001");
  EXPECT_EQ(steps_in(run.path()), (Steps{1, 3, 5, 6}));
  retain(run.path(), 6, 2, run.path() / "elsewhere");
  EXPECT_EQ(steps_in(run.path()), (Steps{3, 5, 6}));
}

TEST(Retention, LaterStepsAreNeitherCountedNorRemoved) {
  const ScratchFolder run;
  make_steps(run.path(), {1, 2, 3, 10, 11});
  retain(run.path(), 3, 2, std::nullopt);
  EXPECT_EQ(steps_in(run.path()), (Steps{2, 3, 10, 11}));
}

TEST(Retention, UnfinishedFoldersGo) {
  const ScratchFolder run;
  make_steps(run.path(), {1});
  fs::create_directories(run.path() / "checkpoints" / "step-000002.tmp" / "deep");
  fs::create_directories(run.path() / "checkpoints" / "step-000004.set-aside-1");
  retain(run.path(), 1, 2, std::nullopt);
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(run.path() / "checkpoints")) {
    names.insert(entry.path().filename().string());
  }
  EXPECT_EQ(names, (std::set<std::string>{"step-000001", "step-000004.set-aside-1"}));
}

TEST(MoveIntoPlace, ReplacesWhatStandsThere) {
  const ScratchFolder run;
  make_steps(run.path(), {7});
  const fs::path folder = run.path() / "checkpoints" / "step-000007";
  const fs::path unfinished = folder.string() + ".tmp";
  fs::create_directories(unfinished);
  write_text(unfinished / "new", "n");
  move_into_place(unfinished, folder);
  EXPECT_TRUE(fs::exists(folder / "new"));
  EXPECT_FALSE(fs::exists(folder / "rank-00000.h5"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.parent_path()), {}), 1);
}

TEST(Pointer, MissingIsEmpty) {
  const ScratchFolder run;
  EXPECT_EQ(read_pointer(run.path(), "best"), "");
  write_pointer(run.path(), "best", "step-000009");
  EXPECT_EQ(read_pointer(run.path(), "best"), "step-000009");
}

TEST(FileErrors, BecomeCheckpointErrors) {
  const ScratchFolder folder;
  expect_error(
      ErrorKind::kCheckpoint,
      [&] { with_file_errors([&] { fs::rename(folder / "nowhere", folder / "there"); }); },
      "nowhere");
}

TEST(RunLock, SecondOneIsToldWhoHoldsIt) {
  const ScratchFolder run;
  auto first = std::make_unique<RunLock>(run.path());
  const std::string pid = "pid " + std::to_string(getpid()) + " on host ";
  EXPECT_EQ(first->owner().rfind(pid, 0), 0U) << first->owner();
  expect_error(
      ErrorKind::kCheckpoint, [&] { RunLock second(run.path()); }, "directory in use by", pid,
      run.path().string());
  first.reset();
  const RunLock third(run.path());
}

TEST(RunLock, OfADeadProcessDoesNotBind) {
  const ScratchFolder run;
  const pid_t child = fork();
  if (child == 0) {
    try {
      const RunLock lock(run.path());
      _exit(0);  // without the destructor
    } catch (...) {
      _exit(1);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(fs::exists(run / "lock"));
  const RunLock lock(run.path());
}

TEST(RunLock, WhatCannotBeOpenedIsNamed) {
  const ScratchFolder run;
  fs::create_directories(run / "lock");
  expect_error(ErrorKind::kCheckpoint, [&] { RunLock lock(run.path()); }, "lock", "directory");
}

}  // namespace
}  // namespace k25::trainer
