#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "parallel/comm/agree.h"
#include "tests/mpi_main.h"

namespace k25::parallel {
namespace {

Communicator& comm() { return test_world().comm(); }

/// The error that `body` agrees upon; every rank must get it.
AgreedError agreed(const std::function<void()>& body) {
  try {
    collectively(comm(), "test", body);
  } catch (const AgreedError& e) {
    return e;
  }
  ADD_FAILURE() << "no error was agreed upon";
  return AgreedError(ErrorKind::kInternal, "", -1);
}

TEST(Collectively, GoesOnWhenNobodyFails) {
  int calls = 0;
  collectively(comm(), "fine", [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(Collectively, AnErrorOfOneRankReachesAllWithItsRankAndHost) {
  for (int bad = 0; bad < comm().size(); ++bad) {
    const AgreedError e = agreed([&] {
      if (comm().rank() == bad) fail(ErrorKind::kCheckpoint, "shard-3.h5 is missing; copy it");
    });
    EXPECT_EQ(e.kind(), ErrorKind::kCheckpoint);
    EXPECT_EQ(e.origin(), bad);
    const std::string prefix =
        "rank " + std::to_string(bad) + " on host " + test_world().peer(bad).host + ": ";
    const std::string message = "shard-3.h5 is missing; copy it";
    EXPECT_EQ(e.what(), comm().size() == 1 ? message : prefix + message);
  }
}

TEST(Collectively, TheLowestRankSpeaks) {
  const AgreedError e = agreed([&] {
    if (comm().rank() > 0) fail(ErrorKind::kData, "rank-local " + std::to_string(comm().rank()));
    if (comm().size() == 1) fail(ErrorKind::kData, "rank-local 1");
  });
  EXPECT_EQ(e.kind(), ErrorKind::kData);
  EXPECT_EQ(e.origin(), comm().size() == 1 ? 0 : 1);
  EXPECT_NE(std::string(e.what()).find("rank-local 1"), std::string::npos);
}

TEST(Collectively, TheSameErrorEverywhereNamesNoRank) {
  const AgreedError e = agreed([] { fail(ErrorKind::kUsage, "a.yaml:3:1: unknown key 'x'"); });
  EXPECT_STREQ(e.what(), "a.yaml:3:1: unknown key 'x'");
  EXPECT_EQ(e.origin(), 0);
}

TEST(Collectively, OtherExceptionsAreOurBugs) {
  const AgreedError e = agreed([] { throw std::runtime_error("out of range"); });
  EXPECT_EQ(e.kind(), ErrorKind::kInternal);
  EXPECT_STREQ(e.what(), "out of range");
  EXPECT_STREQ(agreed([] { throw 7; }).what(), "an exception of an unknown type");
}

TEST(Collectively, NestsAndKeepsTheInnerMessage) {
  const AgreedError e = agreed([&] {
    collectively(comm(), "inner", [&] {
      if (comm().rank() == comm().size() - 1) fail(ErrorKind::kGate, "too slow");
    });
  });
  EXPECT_EQ(e.kind(), ErrorKind::kGate);
  EXPECT_EQ(std::string(e.what()).find("rank"), comm().size() == 1 ? std::string::npos : 0u);
  EXPECT_NE(std::string(e.what()).find("too slow"), std::string::npos);
}

TEST(Collectively, CommunicationErrorsPassUnchanged) {
  try {
    collectively(comm(), "cut", [] { fail(ErrorKind::kCommunication, "rank 1 is gone"); });
    ADD_FAILURE();
  } catch (const AgreedError&) {
    ADD_FAILURE() << "nothing can be agreed upon without communication";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "rank 1 is gone");
  }
}

TEST(FromRank0, SendsTheStringToAll) {
  const std::string long_text(100001, 'x');
  for (const std::string& text : {std::string(), std::string("a\0b", 3), long_text}) {
    int calls = 0;
    const std::string got = from_rank0(comm(), "text", [&] {
      ++calls;
      return text;
    });
    EXPECT_EQ(got, text);
    EXPECT_EQ(calls, comm().rank() == 0 ? 1 : 0);
  }
}

TEST(FromRank0, ItsErrorIsSharedAsItIs) {
  try {
    from_rank0(comm(), "config",
               []() -> std::string { fail(ErrorKind::kUsage, "c.yaml: no such file"); });
    ADD_FAILURE();
  } catch (const AgreedError& e) {
    EXPECT_STREQ(e.what(), "c.yaml: no such file");
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_EQ(e.origin(), 0);
  }
}

}  // namespace
}  // namespace k25::parallel
