// Saving and loading on any mesh: the same elements, the same digest, and errors that all ranks
// share.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <memory>

#include "data/io/atomic_file.h"
#include "parallel/comm/agree.h"
#include "tests/data/scratch_folder.h"
#include "tests/mpi_main.h"
#include "tests/parallel/zero/toy.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/step_folder.h"

namespace k25::trainer {
namespace {

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
void on_rank0(const std::function<void()>& body) {
  parallel::collectively(test_world().comm(), "test", [&] {
    if (test_world().rank() == 0) body();
  });
}

std::vector<MeshShape> meshes() {
  std::vector<MeshShape> all;
  const int ranks = test_world().size();
  for (int r = 1; r <= ranks; ++r) {
    if (ranks % r == 0) all.push_back({.replicate = r, .shard = ranks / r});
  }
  return all;
}

/// A store on some mesh whose every element says which one it is.
struct Setup {
  explicit Setup(const MeshShape& shape)
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

  std::unique_ptr<CheckpointWriter> writer(const fs::path& run, CheckpointConfig config = {}) {
    return std::make_unique<CheckpointWriter>(mesh, store, run, config, DebugKill{}, "config text",
                                              std::nullopt, allocator);
  }

  HostAllocator allocator;
  Context context;
  parallel::Mesh mesh;
  parallel::ZeroOptions options;
  parallel::ZeroStore store;
};

TrainState state_at(std::int64_t step) {
  TrainState state;
  state.step = step;
  state.mixture = {.weights = {1.0}, .consumed = {step}, .next_sample = step};
  return state;
}

void save(Setup& setup, const fs::path& run, std::int64_t step) {
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

TEST(Checkpoint, AnyMeshReadsWhatAnyMeshWrote) {
  std::string first;
  for (const MeshShape& from : meshes()) {
    const SharedFolder run;
    Setup source(from);
    save(source, run.path(), 5);
    const std::string digest = state_digest(source.mesh, source.store);
    if (first.empty()) first = digest;
    EXPECT_EQ(digest, first);
    const fs::path folder = run.path() / "checkpoints" / "step-000005";
    EXPECT_EQ(state_digest_of_files(folder), first);
    EXPECT_EQ(read_checkpoint_info(folder).ranks, from.shard);
    for (const MeshShape& to : meshes()) {
      Setup target(to);
      EXPECT_EQ(load_checkpoint(target.mesh, target.store, folder, LoadWhat::kAll), state_at(5));
      std::int64_t wrong = 0;
      target.each([&](int t, int u, std::int64_t at, float x) {
        wrong += std::bit_cast<std::uint32_t>(x) !=
                 std::bit_cast<std::uint32_t>(Setup::expected(t, u, at));
      });
      EXPECT_EQ(wrong, 0);
      EXPECT_EQ(state_digest(target.mesh, target.store), first);
    }
  }
}

TEST(Checkpoint, WeightsOnlyLeaveTheMomentsAtZero) {
  const SharedFolder run;
  Setup source(meshes().front());
  save(source, run.path(), 1);
  Setup target(meshes().back());
  load_checkpoint(target.mesh, target.store, run.path() / "checkpoints" / "step-000001",
                  LoadWhat::kWeightsOnly);
  std::int64_t wrong = 0;
  target.each([&](int t, int u, std::int64_t at, float x) {
    wrong += x != (t == 0 ? Setup::expected(t, u, at) : 0.0F);
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Checkpoint, TheSnapshotIsThatOfTheCallWhateverFollows) {
  const SharedFolder run;
  Setup source(meshes().front());
  source.fill();
  const std::string digest = state_digest(source.mesh, source.store);
  const auto writer = source.writer(run.path());
  writer->save(state_at(1));
  source.each([](int, int, std::int64_t, float& x) { x = -1.0F; });
  writer->finish();
  EXPECT_EQ(state_digest_of_files(run.path() / "checkpoints" / "step-000001"), digest);
}

TEST(Checkpoint, PlannedSnapshotIsWhatIsAllocatedOnEveryRank) {
  for (const MeshShape& shape : meshes()) {
    const SharedFolder run;
    Setup setup(shape);
    const std::int64_t before = setup.allocator.live().n;
    const auto writer = setup.writer(run.path());
    EXPECT_EQ(setup.allocator.live().n - before,
              CheckpointWriter::plan(parallel::toy_units(), shape).n);
  }
}

TEST(Checkpoint, APointerThatCannotBeWrittenIsSaidAndTheCheckpointStands) {
  for (const auto on_error : {OnCheckpointError::kStop, OnCheckpointError::kWarn}) {
    const SharedFolder run;
    Setup setup(meshes().front());
    setup.fill();
    CheckpointConfig config;
    config.on_error = on_error;
    const auto writer = setup.writer(run.path(), config);
    on_rank0([&] { fs::create_directories(run.path() / "latest" / "in the way"); });
    const auto save = [&] {
      writer->save(state_at(2));
      writer->finish();
    };
    if (on_error == OnCheckpointError::kStop) {
      expect_agreed(ErrorKind::kCheckpoint, save, std::string("is complete, but"),
                    std::string("latest"));
    } else {
      save();
    }
    EXPECT_EQ(writer->saved_step(), 2);
    verify_checkpoint(run.path() / "checkpoints" / "step-000002");
  }
}

TEST(Checkpoint, AFolderThatCannotBeMadeIsAgreed) {
  const SharedFolder run;
  Setup setup(meshes().front());
  on_rank0([&] { data::write_text(run.path() / "checkpoints", "in the way"); });
  const auto writer = setup.writer(run.path());
  expect_agreed(
      ErrorKind::kCheckpoint, [&] { writer->save(state_at(3)); },
      std::string("step 3 was not saved"));
  EXPECT_EQ(writer->saved_step(), -1);
}

TEST(Checkpoint, BestIsPointedToWhenItIsCommitted) {
  const SharedFolder run;
  Setup setup(meshes().front());
  setup.fill();
  const auto writer = setup.writer(run.path());
  for (const std::int64_t step : {1, 2, 3, 4, 5}) {
    writer->save(state_at(step));
    if (step == 2) writer->mark_best(2);
  }
  writer->finish();
  on_rank0([&] {
    EXPECT_EQ(read_pointer(run.path(), "best"), "step-000002");
    EXPECT_EQ(read_pointer(run.path(), "latest"), "step-000005");
    std::vector<std::int64_t> steps;
    for (const StepFolder& step : step_folders(run.path())) steps.push_back(step.step);
    EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 4, 5}));
  });
  writer->mark_best(5);
  on_rank0([&] { EXPECT_EQ(read_pointer(run.path(), "best"), "step-000005"); });
}

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
  fs::path step(std::int64_t n) const { return run_.path() / "checkpoints" / step_folder_name(n); }
  static void damage(const fs::path& file) {
    on_rank0([&] { fs::resize_file(file, fs::file_size(file) - 1); });
  }

  SharedFolder run_;
  Setup setup_;
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

TEST_F(Resume, AutoInAFreshDirectoryFindsNone) {
  on_rank0([&] { fs::remove_all(run_.path() / "checkpoints"); });
  EXPECT_EQ(find("auto"), "none");
}

TEST_F(Resume, NoneSetsEverythingAside) {
  EXPECT_EQ(find("none"), "none");
  EXPECT_EQ(find("auto"), "none");
  EXPECT_TRUE(fs::exists(run_.path() / "checkpoints.before-1" / "step-000003" / "manifest.json"));
  EXPECT_FALSE(fs::exists(run_.path() / "latest"));
}

TEST_F(Resume, AStepSetsLaterOnesAside) {
  on_rank0([&] { write_pointer(run_.path(), "best", "step-000003"); });
  EXPECT_EQ(find("step:0002"), "step-000002");
  EXPECT_EQ(find("auto"), "step-000002");
  on_rank0([&] {
    EXPECT_EQ(read_pointer(run_.path(), "latest"), "step-000002");
    EXPECT_EQ(read_pointer(run_.path(), "best"), "");
  });
  expect_agreed(ErrorKind::kCheckpoint, [&] { find("step:3"); }, std::string("steps there: 1, 2"));
  for (const char* text : {"step:", "step:x", "step:0"}) {
    expect_agreed(ErrorKind::kCheckpoint, [&] { find(text); }, std::string(text));
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
  Setup source(meshes().front());
  save(source, other.path(), 9);
  EXPECT_EQ(find(other.path().string()), "step-000009");
  EXPECT_TRUE(fs::exists(run_.path() / "checkpoints.before-1"));
  EXPECT_EQ(find("auto"), "none");
  expect_agreed(
      ErrorKind::kCheckpoint, [&] { find((other.path() / "nowhere").string()); },
      std::string("nowhere"));
}

TEST(Load, AnotherModelIsRefusedWithAllDifferences) {
  const SharedFolder run;
  Setup source(meshes().front());
  save(source, run.path(), 1);
  parallel::Mesh mesh(test_world(), meshes().front());
  std::vector<parallel::UnitSpec> units = parallel::toy_units();
  units[0].parameters[0].shape = {93, 51};
  units[4].parameters[0].name = "tiny.other";
  units.pop_back();
  HostAllocator allocator;
  Context context;
  parallel::ZeroOptions options;
  options.slots = mesh.data_ranks();
  parallel::ZeroStore store(mesh, units, options, context, allocator);
  expect_agreed(
      ErrorKind::kCheckpoint,
      [&] {
        load_checkpoint(mesh, store, run.path() / "checkpoints" / "step-000001", LoadWhat::kAll);
      },
      std::string("'embedding' has shape [93, 50]"), std::string("[93, 51]"),
      std::string("'tiny.other' is not in the checkpoint"),
      std::string("'tiny.scale' is not in the model"),
      std::string("unit 'none' is not in the model"));
}

// The manifest is whole and the payload agrees with its SHA-256, but it is not what was in memory.
TEST(Load, AStateThatIsNotTheManifestsIsRefused) {
  const SharedFolder run;
  Setup source(meshes().front());
  save(source, run.path(), 1);
  const fs::path folder = run.path() / "checkpoints" / "step-000001";
  on_rank0([&] {
    std::string text = data::read_file(folder / "manifest.json", ErrorKind::kCheckpoint);
    const std::size_t at = text.find("\"master\": \"") + 11;
    text[at] = text[at] == '0' ? '1' : '0';
    data::write_text(folder / "manifest.json", text);
  });
  expect_agreed(
      ErrorKind::kCheckpoint,
      [&] { load_checkpoint(source.mesh, source.store, folder, LoadWhat::kAll); },
      std::string("digest of tensor 'master'"));
}

}  // namespace
}  // namespace k25::trainer
