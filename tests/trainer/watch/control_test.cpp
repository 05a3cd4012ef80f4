// Commands to a live run, and what a rank answers.
#include "trainer/watch/control.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "tests/data/scratch_folder.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

class ControlTest : public ::testing::Test {
 protected:
  ControlTest() : world_(parallel::World::create({})) {
    std::int64_t one = 1;
    world_->comm().all_reduce_small({.name = "marker"}, {.integers = &one, .count = 1}).wait();
  }
  DumpAnswers wait_for_answers(const std::string& id) {
    DumpAnswers answers;
    for (int i = 0; i < 2000 && answers.ranks == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      answers = dump_answers(folder_.path(), id);
    }
    return answers;
  }
  data::ScratchFolder folder_;
  std::unique_ptr<parallel::World> world_;
  std::atomic<std::int64_t> signals_{0};
};

TEST_F(ControlTest, ACommandIsSeenOnceByEveryInbox) {
  ControlInbox first(folder_.path()), second(folder_.path());
  EXPECT_TRUE(first.take_new().empty());
  const std::string id = post_command(folder_.path(), "dump");
  for (ControlInbox* inbox : {&first, &second}) {
    const std::vector<ControlCommand> commands = inbox->take_new();
    ASSERT_EQ(commands.size(), 1u);
    EXPECT_EQ(commands[0].id, id);
    EXPECT_EQ(commands[0].what, "dump");
    EXPECT_TRUE(inbox->take_new().empty());
  }
  EXPECT_TRUE(ControlInbox(folder_.path()).take_new().empty()) << "it was there before";
  remove_command(folder_.path(), id);
  EXPECT_EQ(folder_.entries(), 0);
}

TEST_F(ControlTest, WhatIsNoCommandIsPassedOver) {
  ControlInbox inbox(folder_.path());
  fs::create_directory(folder_ / "control");
  for (const auto& [name, text] : {std::pair{"a.json", "not JSON"},
                                   {"b.json", "[1]"},
                                   {"c.json", "{\"command\": 3}"},
                                   {"d.txt", "{\"command\": \"dump\"}"},
                                   {".e.json", "{\"command\": \"dump\"}"}}) {
    std::ofstream(folder_ / "control" / name) << text;
  }
  std::ofstream(folder_ / "control" / "f.json") << std::string(5000, ' ');
  fs::create_directory(folder_ / "control" / "g.json");
  EXPECT_TRUE(inbox.take_new().empty());
}

TEST_F(ControlTest, ADumpNamesTheRankAndItsCollectives) {
  write_dump(folder_.path(), *world_, {"dump-1-2", "dump-3-4"});
  const fs::path path = dump_path(folder_.path(), 0);
  EXPECT_EQ(path, folder_.path() / "dumps" / "collectives-rank-00000.txt");
  const std::string text = content(path);
  EXPECT_TRUE(text.starts_with("rank 0 of 1 (host " + world_->peer(0).host + ", pid ")) << text;
  EXPECT_NE(text.find("waiting for no other rank"), std::string::npos) << text;
  EXPECT_NE(text.find("all_reduce_small marker 8 bytes done"), std::string::npos) << text;
  for (const char* id : {"dump-1-2", "dump-3-4"}) {
    const DumpAnswers answers = dump_answers(folder_.path(), id);
    EXPECT_EQ(answers.ranks, 1);
    EXPECT_EQ(answers.answered, std::vector<int>{0});
  }
  EXPECT_EQ(dump_answers(folder_.path(), "dump-1").ranks, 0) << "an id that is only a beginning";
}

TEST_F(ControlTest, AnswersOfARunWithoutDumps) {
  EXPECT_EQ(dump_answers(folder_.path(), "dump-1-2").ranks, 0);
  EXPECT_EQ(dump_answers(folder_ / "none", "dump-1-2").ranks, 0);
}

TEST_F(ControlTest, TheWatchAnswersACommand) {
  const ControlWatch watch(folder_.path(), *world_, signals_);
  const std::string id = post_command(folder_.path(), "dump");
  EXPECT_EQ(wait_for_answers(id).answered, std::vector<int>{0});
  EXPECT_TRUE(fs::exists(folder_ / "control" / (id + ".json"))) << "whoever posted takes it back";
}

TEST_F(ControlTest, ASignalBecomesACommandThatIsTakenBack) {
  {
    const ControlWatch watch(folder_.path(), *world_, signals_);
    EXPECT_FALSE(fs::exists(folder_ / "control"));
    ++signals_;
    for (int i = 0; i < 2000 && !fs::exists(dump_path(folder_.path(), 0)); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(fs::exists(dump_path(folder_.path(), 0)));
  }
  EXPECT_FALSE(fs::exists(folder_ / "control"));
}

TEST_F(ControlTest, AFolderThatMayNotBeWrittenIsAnError) {
  std::ofstream(folder_ / "control") << "a file";
  try {
    post_command(folder_.path(), "dump");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
    EXPECT_NE(std::string(error.what()).find("control"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace k25::trainer
