// Pointers, retention, moving into place, and the lock of a run directory.
#include "trainer/checkpoint/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
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
      ErrorKind::kCheckpoint, [&] { step_folders(run.path()); },
      (run / "checkpoints").string() + ": is no folder", "remove it, or name another run");
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

TEST(Leftovers, OfAKilledRunGoAndAUsersFilesStay) {
  const ScratchFolder run;
  make_steps(run.path(), {1});
  const fs::path checkpoints = run / "checkpoints";
  const std::vector<fs::path> ours = {run / ".latest.partial-0123456789abcdef",
                                      run / ".best.partial-ffffffffffffffff",
                                      run / ".config.yaml.partial-00000000deadbeef",
                                      run / ".plans.json.partial-00000000deadbeef",
                                      run / ".metrics.jsonl.partial-0000000000000000",
                                      checkpoints / "step-000002.tmp" / "rank-00000.h5",
                                      checkpoints / "step-2.removed.tmp" / "manifest.json",
                                      checkpoints / "step-000003.replaced.tmp" / "x"};
  const std::vector<fs::path> not_ours = {run / ".latest.partial-mine",
                                          run / ".latest.partial-0123456789ABCDEF",
                                          run / ".latest.partial-0123456789abcdef0",
                                          run / ".notes.partial-0123456789abcdef",
                                          run / "latest.partial-0123456789abcdef",
                                          run / "step-000002.tmp",
                                          checkpoints / "notes.tmp",
                                          checkpoints / "step-.tmp",
                                          checkpoints / "step-000002.mine.tmp",
                                          checkpoints / "step-000002.tmp.mine" / "x",
                                          checkpoints / "step-000001" / "a.tmp",
                                          checkpoints / "step-000001.set-aside-1" / "x"};
  for (const auto& list : {ours, not_ours}) {
    for (const fs::path& path : list) {
      fs::create_directories(path.parent_path());
      write_text(path, "x");
    }
  }
  fs::create_directories(run / ".best.partial-0123456789abcdef");  // k25 writes no such folder
  remove_leftovers(run.path());
  for (const fs::path& path : ours) EXPECT_FALSE(fs::exists(path)) << path;
  for (const fs::path& path : not_ours) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_TRUE(fs::exists(run / ".best.partial-0123456789abcdef"));
  EXPECT_EQ(steps_in(run.path()), Steps{1});
  EXPECT_FALSE(fs::exists(checkpoints / "step-000002.tmp"));
}

TEST(Leftovers, AFreshRunHasNone) {
  const ScratchFolder run;
  remove_leftovers(run.path());
  EXPECT_TRUE(fs::is_empty(run.path()));
}

TEST(MoveIntoPlace, SetsAsideWhatStandsThere) {
  const ScratchFolder run;
  make_steps(run.path(), {7});
  const fs::path folder = run.path() / "checkpoints" / "step-000007";
  const fs::path unfinished = folder.string() + ".tmp";
  fs::create_directories(unfinished);
  write_text(unfinished / "new", "n");
  EXPECT_EQ(move_into_place(unfinished, folder), "step-000007.set-aside-1");
  EXPECT_TRUE(fs::exists(folder / "new"));
  EXPECT_FALSE(fs::exists(folder / "rank-00000.h5"));
  EXPECT_TRUE(fs::exists(folder.string() + ".set-aside-1/rank-00000.h5"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.parent_path()), {}), 2);
}

TEST(MakeUnfinished, WhatCannotBeRemovedIsOutOfTheWay) {
  const ScratchFolder run;
  make_steps(run.path(), {7});
  const fs::path folder = run.path() / "checkpoints" / "step-000007";
  fs::create_directories(folder.string() + ".removed-1.tmp");
  write_text(folder.string() + ".removed-x.tmp", "a user's");
  remove_whole(folder);
  make_unfinished(folder);
  EXPECT_EQ(move_into_place(folder.string() + ".tmp", folder), "");
  EXPECT_TRUE(fs::is_empty(folder));
  EXPECT_TRUE(remove_leftovers(run.path()).empty());
  EXPECT_FALSE(fs::exists(folder.string() + ".removed-1.tmp"));
  EXPECT_TRUE(fs::exists(folder.string() + ".removed-x.tmp"));
}

TEST(RegularFiles, AnythingElseInTheirPlaceIsRefused) {
  for (const char* name :
       {"lock", "config.yaml", "plans.json", "metrics.jsonl", "latest", "best"}) {
    const ScratchFolder run;
    require_regular_files(run.path());
    ASSERT_EQ(mkfifo((run / name).c_str(), 0600), 0);
    expect_error(
        ErrorKind::kCheckpoint, [&] { require_regular_files(run.path()); },
        (run / name).string() + ": is no regular file, but a pipe", "run.dir");
    fs::remove(run / name);
    write_text(run / "target", "x");
    fs::create_symlink(run / "target", run / name);
    require_regular_files(run.path());
  }
}

TEST(RegularFiles, AnythingElseInAFoldersPlaceIsRefused) {
  for (const char* name : {"checkpoints", "tensorboard"}) {
    const ScratchFolder run;
    write_text(run / name, "x");
    expect_error(
        ErrorKind::kCheckpoint, [&] { require_regular_files(run.path()); },
        (run / name).string() + ": is no folder, but a file", "run.dir");
    fs::remove(run / name);
    fs::create_directory(run / "target");
    fs::create_directory_symlink(run / "target", run / name);
    require_regular_files(run.path());
  }
}

TEST(CheckpointFolder, AFileInItsPlaceIsNoClosedOne) {
  const ScratchFolder run;
  const fs::path folder = run / "step-000012";
  require_checkpoint_folder(folder);  // nothing: that is another error
  write_text(folder, "");
  const std::string told = folder.string() + ": is no folder but a file, so no checkpoint";
  expect_error(ErrorKind::kCheckpoint, [&] { require_checkpoint_folder(folder); }, told);
  expect_error(ErrorKind::kCheckpoint, [&] { require_readable(folder); }, told);
  expect_error(ErrorKind::kCheckpoint, [&] { read_checkpoint_info(folder); }, told);
  fs::remove(folder);
  fs::create_directory(folder);
  require_readable(folder);
}

TEST(StepName, IsWhatTheFolderOfAStepIsCalled) {
  for (const char* name : {"step-000012", "step-1", "step-123456789012345678"}) {
    EXPECT_TRUE(is_step_name(name)) << name;
  }
  for (const char* name :
       {"step-", "step-x", "step-1.tmp", "step-1234567890123456789", "steps-1"}) {
    EXPECT_FALSE(is_step_name(name)) << name;
  }
}

TEST(TypeAt, ALoopOfLinksIsNotNothing) {
  const ScratchFolder folder;
  EXPECT_FALSE(is_there(folder / "nowhere"));
  EXPECT_TRUE(is_folder(folder.path()));
  fs::create_symlink(folder / "a", folder / "b");
  fs::create_symlink(folder / "b", folder / "a");
  expect_error(
      ErrorKind::kCheckpoint, [&] { is_there(folder / "a"); }, (folder / "a").string(),
      "may not look there", "symbolic links");
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

TEST(RunLock, ADirectoryThatIsNoLongerTheLockedOneIsNoticed) {
  const auto lost = [](const auto& change, const char* how) {
    const ScratchFolder root;
    const fs::path run = root / "run";
    const RunLock lock(run);
    lock.require_held();
    change(run);
    expect_error(
        ErrorKind::kCheckpoint, [&] { lock.require_held(); }, (run / "lock").string(), how,
        lock.owner(), "--resume auto");
  };
  lost([](const fs::path& run) { fs::rename(run, run.string() + "2"); }, "is gone");
  lost([](const fs::path& run) { fs::remove_all(run); }, "is gone");
  lost([](const fs::path& run) { fs::remove(run / "lock"); }, "is gone");
  lost(
      [](const fs::path& run) {
        fs::rename(run, run.string() + "2");
        fs::create_directories(run);
        write_text(run / "lock", "another run");
      },
      "is another file");
}

TEST(RunLock, AMovedDirectoryThatALinkLeadsToIsHeld) {
  const ScratchFolder root;
  const RunLock lock(root / "run");
  fs::rename(root / "run", root / "moved");
  fs::create_directory_symlink(root / "moved", root / "run");
  lock.require_held();
}

TEST(RunLock, WhatItMadeGoesWithItUnlessSomethingCameIn) {
  const ScratchFolder root;
  {
    const RunLock lock(root / "a" / "b" / "run");
  }
  EXPECT_TRUE(fs::is_empty(root.path()));
  fs::create_directories(root / "mine");
  {
    const RunLock lock(root / "mine");
  }
  EXPECT_TRUE(fs::is_empty(root / "mine"));
  {
    const RunLock lock(root / "a" / "run");
    write_text(root / "a" / "run" / "config.yaml", "x");
  }
  EXPECT_TRUE(fs::exists(root / "a" / "run" / "lock"));
  fs::remove(root / "a" / "run" / "config.yaml");
  {
    const RunLock lock(root / "a" / "run");
  }  // the lock of an earlier run
  EXPECT_TRUE(fs::exists(root / "a" / "run" / "lock"));
}

TEST(RunLock, WhatStandsInThePlaceOfALostDirectoryIsNotRemoved) {
  const ScratchFolder root;
  {
    const RunLock lock(root / "run");
    fs::rename(root / "run", root / "moved");
    fs::create_directories(root / "run");
  }
  EXPECT_TRUE(fs::exists(root / "run"));
  EXPECT_TRUE(fs::exists(root / "moved" / "lock"));
}

TEST(RunLock, AFolderOfSomethingElseIsRefusedAndLeftAlone) {
  const ScratchFolder root;
  write_text(root / "thesis.tex", "x");
  expect_error(
      ErrorKind::kCheckpoint, [&] { RunLock lock(root.path()); }, "no k25 run",
      root.path().string());
  EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), {}), 1);
  expect_error(
      ErrorKind::kCheckpoint, [&] { RunLock lock(root / "thesis.tex" / "run"); }, "run.dir",
      "cannot create");
}

TEST(RunLock, APathUpFromAFolderThatIsNotThereIsRefused) {
  const ScratchFolder root;
  expect_error(
      ErrorKind::kCheckpoint, [&] { RunLock lock(root / "a" / ".." / "run"); }, "run.dir",
      "there is no folder", (root / "a").string(), "without '..'");
  EXPECT_TRUE(fs::is_empty(root.path()));
  fs::create_directories(root / "a");
  const RunLock lock(root / "a" / ".." / "run");
}

TEST(RunLock, WhatCannotBeOpenedIsNamed) {
  const ScratchFolder run;
  fs::create_directories(run / "lock");
  expect_error(ErrorKind::kCheckpoint, [&] { RunLock lock(run.path()); }, "lock", "directory");
}

}  // namespace
}  // namespace k25::trainer
