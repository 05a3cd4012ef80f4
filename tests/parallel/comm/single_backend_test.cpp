#include "parallel/comm/single_backend.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/core/check.h"

namespace k25::parallel {
namespace {

class SingleBackend : public testing::Test {
 protected:
  std::unique_ptr<World> world_ = make_single_world({});
  Communicator& comm_ = world_->comm();
};

TEST_F(SingleBackend, IsAWorldOfOne) {
  EXPECT_EQ(world_->rank(), 0);
  EXPECT_EQ(world_->size(), 1);
  EXPECT_EQ(world_->local_rank(), 0);
  EXPECT_EQ(world_->local_size(), 1);
  EXPECT_EQ(world_->peer(0).pid, getpid());
  EXPECT_THROW(world_->peer(1), Error);
  EXPECT_EQ(world_->waiting_for(), "");
  EXPECT_FALSE(world_->peer_failed());
  const auto part = world_->split(3, 7, "shard");
  EXPECT_EQ(part->rank(), 0);
  EXPECT_EQ(part->size(), 1);
  EXPECT_EQ(part->name(), "shard");
}

TEST_F(SingleBackend, MovesData) {
  std::vector<char> from = {1, 2, 3, 4}, to(4), unchanged = from;
  comm_.all_gather({"a"}, {from.data(), Bytes{4}}).wait();
  comm_.broadcast({"a"}, {from.data(), Bytes{4}, 0}).wait();
  EXPECT_EQ(from, unchanged);
  comm_.all_to_all({"a"}, {from.data(), to.data(), Bytes{3}}).wait();
  EXPECT_EQ(to, (std::vector<char>{1, 2, 3, 0}));
  comm_.ring_exchange({"a"}, {from.data() + 3, to.data(), Bytes{1}}).wait();
  EXPECT_EQ(to, (std::vector<char>{4, 2, 3, 0}));
  const std::vector<Bytes> send_at = {Bytes{1}}, recv_at = {Bytes{2}}, two = {Bytes{2}};
  comm_.all_to_all_v({"a"}, {from.data(), send_at, two, to.data(), recv_at, two}).wait();
  EXPECT_EQ(to, (std::vector<char>{4, 2, 2, 3}));
  comm_.barrier("a", Clock::now());
}

TEST_F(SingleBackend, ReduceScatterAccumulatesTheOwnedSlice) {
  const std::vector<float> input = {1, 2, 3, 4};
  for (const ReduceMode mode : {ReduceMode::kOrdered, ReduceMode::kLibrary}) {
    std::vector<float> acc = {10, 20};
    const std::vector<int> owner = {1};
    ReduceScatter args;
    args.input = input.data();
    args.accumulator = acc.data();
    args.per_slice = Elems{2};
    args.mode = mode;
    args.slice_of_rank = owner;
    comm_.reduce_scatter({"g"}, args).wait();
    EXPECT_EQ(acc, (std::vector<float>{13, 24}));
    args.slice_of_rank = {};
    comm_.reduce_scatter({"g"}, args).wait();
    EXPECT_EQ(acc, (std::vector<float>{14, 26}));
  }
}

TEST_F(SingleBackend, AllReduceSmallKeepsTheValues) {
  double value = 1.5;
  AllReduceSmall args;
  args.values = &value;
  args.count = 1;
  comm_.all_reduce_small({"v"}, args).wait();
  EXPECT_EQ(value, 1.5);
  std::int64_t integer = 3;
  args.integers = &integer;
  EXPECT_THROW(comm_.all_reduce_small({"v"}, args), Error);  // both given
}

TEST_F(SingleBackend, GroupsNestNowhere) {
  EXPECT_THROW(comm_.group_end(), Error);
  comm_.group_begin();
  EXPECT_THROW(comm_.group_begin(), Error);
  comm_.group_end().wait();
}

TEST_F(SingleBackend, LogsItsCalls) {
  comm_.all_gather({"layers.3"}, {nullptr, Bytes{0}});
  comm_.barrier("end", Clock::now());
  const std::string dump = world_->dump();
  EXPECT_NE(dump.find("world #0 all_gather layers.3 0 bytes done"), std::string::npos) << dump;
  EXPECT_NE(dump.find("world #1 barrier end 0 bytes done"), std::string::npos) << dump;
}

TEST_F(SingleBackend, AbortEndsTheProcessWithTheCode) {
  EXPECT_EXIT(world_->abort(4), testing::ExitedWithCode(4), "");
}

TEST(WorldCreate, ALoneProcessNeedsNoMpi) {
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "SLURM_STEP_NUM_TASKS"}) {
    unsetenv(name);
  }
  EXPECT_FALSE(launched_by_mpi());
  EXPECT_EQ(World::create({})->size(), 1);
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    setenv(name, "1", 1);
    EXPECT_TRUE(launched_by_mpi()) << name;
    unsetenv(name);
  }
  // srun without an MPI plugin must not train N times side by side.
  setenv("SLURM_STEP_NUM_TASKS", "4", 1);
  try {
    World::create({});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(e.what()).find("srun --mpi=pmix"), std::string::npos);
  }
  setenv("SLURM_STEP_NUM_TASKS", "1", 1);
  EXPECT_EQ(World::create({})->size(), 1);
  unsetenv("SLURM_STEP_NUM_TASKS");
}

}  // namespace
}  // namespace k25::parallel
