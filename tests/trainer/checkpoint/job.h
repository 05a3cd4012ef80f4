#pragma once
// For the tests of saving and loading: a folder that all ranks share, and a store on some mesh
// whose every element says which one it is.

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/agree.h"
#include "tests/data/scratch_folder.h"
#include "tests/mpi_main.h"
#include "tests/parallel/zero/toy.h"
#include "trainer/checkpoint/checkpoint.h"

namespace k25::trainer {

namespace fs = std::filesystem;
using parallel::MeshShape;
using parallel::test_world;

/// One folder of rank 0's that all ranks use.
class SharedFolder {
 public:
  SharedFolder() {
    path_ = parallel::from_rank0(test_world().comm(), "test folder", [&] {
      mine_ = std::make_unique<data::ScratchFolder>();
      return mine_->path().string();
    });
  }
  ~SharedFolder() {
    parallel::collectively(test_world().comm(), "end of test", [] {});
  }
  const fs::path& path() const { return path_; }

 private:
  std::unique_ptr<data::ScratchFolder> mine_;
  fs::path path_;
};

/// Something only one rank does, before the others go on.
inline void on_rank0(const std::function<void()>& body) {
  parallel::collectively(test_world().comm(), "test", [&] {
    if (test_world().rank() == 0) body();
  });
}

inline std::vector<MeshShape> meshes() {
  std::vector<MeshShape> all;
  const int ranks = test_world().size();
  for (int r = 1; r <= ranks; ++r) {
    if (ranks % r == 0) all.push_back({.replicate = r, .shard = ranks / r});
  }
  return all;
}

/// A store on some mesh whose every element says which one it is.
struct Job {
  explicit Job(const MeshShape& shape)
      : mesh(test_world(), shape),
        options(make_options()),
        store(mesh, parallel::toy_units(), options, context, allocator) {}

  parallel::ZeroOptions make_options() const {
    parallel::ZeroOptions o;
    o.slots = mesh.data_ranks();
    return o;
  }

  template <class Visit>  // (tensor, unit, element of the unit, value)
  void each(const Visit& visit) {
    for (int u = 0; u < store.num_units(); ++u) {
      Tensor tensors[] = {store.master(u), store.m(u), store.v(u)};
      for (int t = 0; t < 3; ++t) {
        for (std::int64_t i = 0; i < tensors[t].numel(); ++i) {
          const std::int64_t at = store.shard_begin(u) + i;
          if (at < store.layout(u).numel) visit(t, u, at, tensors[t].data<float>()[i]);
        }
      }
    }
  }
  void fill() {
    each([](int t, int u, std::int64_t at, float& x) { x = expected(t, u, at); });
  }
  static float expected(int t, int u, std::int64_t at) {
    return static_cast<float>(at) + 0.25F * static_cast<float>(t) +
           0.03125F * static_cast<float>(u);
  }

  std::unique_ptr<CheckpointWriter> writer(const fs::path& run, CheckpointConfig config = {},
                                           const RunLock* lock = nullptr) {
    return std::make_unique<CheckpointWriter>(mesh, store, run, lock, config, DebugKill{},
                                              "config text", std::nullopt, allocator);
  }

  HostAllocator allocator;
  Context context;
  parallel::Mesh mesh;
  parallel::ZeroOptions options;
  parallel::ZeroStore store;
};

inline TrainState state_at(std::int64_t step) {
  TrainState state;
  state.step = step;
  state.mixture = {.weights = {1.0}, .consumed = {step}, .next_sample = step};
  return state;
}

inline void save(Job& setup, const fs::path& run, std::int64_t step) {
  setup.fill();
  const auto writer = setup.writer(run);
  writer->save(state_at(step));
  writer->finish();
  EXPECT_EQ(writer->saved_step(), step);
}

/// Every rank throws the same AgreedError whose message holds every part.
template <class Action, class... Parts>
void expect_agreed(ErrorKind kind, const Action& action, const Parts&... parts) {
  try {
    action();
    ADD_FAILURE() << "no error was thrown";
  } catch (const parallel::AgreedError& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    for (const std::string& part : std::vector<std::string>{parts...}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "'" << part << "' not in: " << error.what();
    }
  }
}

}  // namespace k25::trainer
