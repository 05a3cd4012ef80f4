#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "parallel/mesh.h"
#include "tests/mpi_main.h"

namespace k25::parallel {
namespace {

/// The world ranks of a communicator, by its own ranks.
std::vector<int> members(Communicator& comm) {
  std::vector<int> ranks(static_cast<std::size_t>(comm.size()));
  ranks[static_cast<std::size_t>(comm.rank())] = test_world().rank();
  comm.all_gather({"members"}, {ranks.data(), Bytes{sizeof(int)}}).wait();
  return ranks;
}

std::vector<MeshShape> shapes_of(int size) {
  std::vector<MeshShape> shapes;
  for (int r = 1; r <= size; ++r) {
    for (int e = 1; e <= size; ++e) {
      for (int c = 1; c <= size; ++c) {
        for (int s = 1; s <= size; ++s) {
          if (r * e * c * s == size) shapes.push_back({r, s, e, c});
        }
      }
    }
  }
  return shapes;
}

TEST(Mesh, EveryShapeOfTheWorldHasTheRightCommunicators) {
  World& world = test_world();
  for (const MeshShape& shape : shapes_of(world.size())) {
    const Mesh mesh(world, shape);
    // The formula of the header, over all ranks.
    std::vector<int> shard, data;
    const MeshShape& me = mesh.coordinate();
    int rank = 0;
    for (int r = 0; r < shape.replicate; ++r) {
      for (int e = 0; e < shape.expert; ++e) {
        for (int c = 0; c < shape.context; ++c) {
          for (int s = 0; s < shape.shard; ++s, ++rank) {
            if (r == me.replicate) shard.push_back(rank);
            if (c == me.context) data.push_back(rank);
            if (rank == world.rank()) {
              EXPECT_TRUE(me.replicate == r && me.expert == e && me.context == c && me.shard == s);
            }
          }
        }
      }
    }
    EXPECT_EQ(members(mesh.shard_comm()), shard);
    EXPECT_EQ(members(mesh.data_comm()), data);
    EXPECT_EQ(mesh.data_ranks(), shape.replicate * shape.shard * shape.expert);
    EXPECT_EQ(mesh.data_rank(), std::find(data.begin(), data.end(), world.rank()) - data.begin());
    EXPECT_EQ(mesh.shard_comm().name(), "shard");
    EXPECT_EQ(mesh.data_comm().name(), "data");
  }
}

TEST(Mesh, RefusesAShapeThatIsNotTheWorld) {
  World& world = test_world();
  const int n = world.size();
  const auto message = [&](const MeshShape& shape) -> std::string {
    try {
      const Mesh mesh(world, shape);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUsage);
      return e.what();
    }
    return "nothing thrown";
  };
  const std::string text = message({7, 5, 3, 2});
  EXPECT_NE(text.find("replicate 7 x shard 5 x expert 3 x context 2"), std::string::npos) << text;
  EXPECT_NE(text.find("number of ranks, " + std::to_string(n)), std::string::npos) << text;
  for (const MeshShape& bad :
       {MeshShape{0, n, 1, 1}, MeshShape{1, n + 1, 1, 1}, MeshShape{-1, -n, 1, 1},
        MeshShape{65536, 65536, 65536, 65536}, MeshShape{1, n, 1, 2}}) {
    EXPECT_NE(message(bad).find("multiply"), std::string::npos);
  }
}

}  // namespace
}  // namespace k25::parallel
