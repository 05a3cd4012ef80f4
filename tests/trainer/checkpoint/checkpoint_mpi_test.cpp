// Saving and loading on any mesh: the same elements, the same digest, and errors that all ranks
// share.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <thread>

#include "data/io/atomic_file.h"
#include "data/io/h5_layout.h"
#include "tests/trainer/checkpoint/job.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/step_folder.h"

namespace k25::trainer {
namespace {

TEST(Checkpoint, AnyMeshReadsWhatAnyMeshWrote) {
  std::string first;
  for (const MeshShape& from : meshes()) {
    const SharedFolder run;
    Job source(from);
    save(source, run.path(), 5);
    const std::string digest = state_digest(source.mesh, source.store);
    if (first.empty()) first = digest;
    EXPECT_EQ(digest, first);
    const fs::path folder = run.path() / "checkpoints" / "step-000005";
    EXPECT_EQ(state_digest_of_files(folder), first);
    EXPECT_EQ(read_checkpoint_info(folder).ranks, from.shard);
    for (const MeshShape& to : meshes()) {
      Job target(to);
      EXPECT_EQ(load_checkpoint(target.mesh, target.store, folder, LoadWhat::kAll), state_at(5));
      std::int64_t wrong = 0;
      target.each([&](int t, int u, std::int64_t at, float x) {
        wrong += std::bit_cast<std::uint32_t>(x) !=
                 std::bit_cast<std::uint32_t>(Job::expected(t, u, at));
      });
      EXPECT_EQ(wrong, 0);
      EXPECT_EQ(state_digest(target.mesh, target.store), first);
    }
  }
}

TEST(Checkpoint, WeightsOnlyLeaveTheMomentsAtZero) {
  const SharedFolder run;
  Job source(meshes().front());
  save(source, run.path(), 1);
  Job target(meshes().back());
  load_checkpoint(target.mesh, target.store, run.path() / "checkpoints" / "step-000001",
                  LoadWhat::kWeightsOnly);
  std::int64_t wrong = 0;
  target.each([&](int t, int u, std::int64_t at, float x) {
    wrong += x != (t == 0 ? Job::expected(t, u, at) : 0.0F);
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Checkpoint, TheSnapshotIsThatOfTheCallWhateverFollows) {
  const SharedFolder run;
  Job source(meshes().front());
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
    Job setup(shape);
    const std::int64_t before = setup.allocator.live().n;
    const auto writer = setup.writer(run.path());
    EXPECT_EQ(setup.allocator.live().n - before,
              CheckpointWriter::plan(parallel::toy_units(), shape).n);
  }
}

TEST(Checkpoint, APointerThatCannotBeWrittenIsSaidAndTheCheckpointStands) {
  for (const auto on_error : {OnCheckpointError::kStop, OnCheckpointError::kWarn}) {
    const SharedFolder run;
    Job setup(meshes().front());
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
  Job setup(meshes().front());
  on_rank0([&] { data::write_text(run.path() / "checkpoints", "in the way"); });
  const auto writer = setup.writer(run.path());
  expect_agreed(
      ErrorKind::kCheckpoint, [&] { writer->save(state_at(3)); },
      std::string("step 3 was not saved"));
  EXPECT_EQ(writer->saved_step(), -1);
}

// HDF5 is one state of the whole process, and the library is built without thread safety.
TEST(Checkpoint, SavesBehindTheBackOfAReader) {
  constexpr std::int64_t kSaves = 20;
  const SharedFolder run;
  Job job(meshes().front());
  job.fill();
  CheckpointConfig config;
  config.keep = kSaves + 1;
  const auto writer = job.writer(run.path(), config);
  writer->save(state_at(1));
  writer->finish();
  const std::string digest = state_digest(job.mesh, job.store);
  const auto folder = [&](std::int64_t n) {
    return run.path() / "checkpoints" / step_folder_name(n);
  };
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> right{0}, wrong{0};
  std::thread reader([&] {
    do {
      ++(state_digest_of_files(folder(1)) == digest ? right : wrong);
    } while (!stop);
  });
  for (std::int64_t n = 2; n <= kSaves; ++n) writer->save(state_at(n));
  writer->finish();
  stop = true;
  reader.join();
  EXPECT_GT(right, 0);
  EXPECT_EQ(wrong, 0);
  for (std::int64_t n = 1; n <= kSaves; ++n) EXPECT_EQ(state_digest_of_files(folder(n)), digest);
}

TEST(Checkpoint, BestIsPointedToWhenItIsCommitted) {
  const SharedFolder run;
  Job setup(meshes().front());
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

TEST(Load, AnotherModelIsRefusedWithAllDifferences) {
  const SharedFolder run;
  Job source(meshes().front());
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
  Job source(meshes().front());
  save(source, run.path(), 1);
  const fs::path folder = run.path() / "checkpoints" / "step-000001";
  on_rank0([&] {
    Manifest manifest = read_manifest(folder);
    manifest.digests.master[0] = manifest.digests.master[0] == '0' ? '1' : '0';
    data::write_text(folder / kManifestName, to_json(manifest));
  });
  expect_agreed(
      ErrorKind::kCheckpoint,
      [&] { load_checkpoint(source.mesh, source.store, folder, LoadWhat::kAll); },
      std::string("digest of tensor 'master'"));
}

// A shard whose bytes agree with the manifest's SHA-256 but whose datasets are not what it needs.
void rewrite_shard(const fs::path& folder, const std::function<void(data::H5Layout&)>& change) {
  on_rank0([&] {
    Manifest manifest = read_manifest(folder);
    const fs::path path = folder / manifest.files[0].name;
    data::H5Layout layout = data::read_h5_layout(path, ErrorKind::kCheckpoint);
    change(layout);
    fs::remove(path);
    data::H5Writer file(path, layout, ErrorKind::kCheckpoint);
    manifest.files[0].digest = file.finish();
    data::write_text(folder / kManifestName, to_json(manifest));
  });
}

TEST(Load, DatasetsThatAreNotTheManifestsAreNamedWithTheirFile) {
  const std::string name = "/units/embedding/master";
  const std::pair<std::function<void(data::H5Layout&)>, std::string> cases[] = {
      {[&](data::H5Layout& l) { l.erase(name); }, "is missing"},
      {[&](data::H5Layout& l) { l.at(name).type = data::H5Type::kF64; }, "expected"},
      {[&](data::H5Layout& l) { l.at(name).type = data::H5Type::kI32; }, "expected"},
      {[&](data::H5Layout& l) { --l.at(name).shape[0]; }, "bytes, the manifest says"},
      {[&](data::H5Layout& l) { ++l.at(name).shape[0]; }, "bytes, the manifest says"}};
  for (const auto& [change, words] : cases) {
    const SharedFolder run;
    Job source({.replicate = 1, .shard = test_world().size()});
    save(source, run.path(), 1);
    const fs::path folder = run.path() / "checkpoints" / "step-000001";
    rewrite_shard(folder, change);
    const std::string file = (folder / "rank-00000.h5").string();
    expect_agreed(
        ErrorKind::kCheckpoint,
        [&] { load_checkpoint(source.mesh, source.store, folder, LoadWhat::kAll); }, file, name,
        words);
    expect_agreed(
        ErrorKind::kCheckpoint, [&] { verify_together(test_world().comm(), folder); }, file, name,
        words);
    on_rank0([&] {
      data::expect_error(
          ErrorKind::kCheckpoint, [&] { verify_checkpoint(folder); }, file, name, words);
      data::expect_error(
          ErrorKind::kCheckpoint, [&] { state_digest_of_files(folder); }, file, name, words);
    });
  }
}

// Whatever checkpoint.on_error says, and nothing comes into what stands there now.
TEST(Checkpoint, ARunDirectoryThatWasReplacedIsNotWrittenInto) {
  for (const auto on_error : {OnCheckpointError::kStop, OnCheckpointError::kWarn}) {
    for (const bool while_writing : {false, true}) {
      const SharedFolder root;
      const fs::path run = root.path() / "run";
      std::unique_ptr<RunLock> lock;
      on_rank0([&] { lock = std::make_unique<RunLock>(run); });
      Job job(meshes().front());
      job.fill();
      CheckpointConfig config;
      config.on_error = on_error;
      const auto writer = job.writer(run, config, lock.get());
      if (while_writing) writer->save(state_at(1));
      on_rank0([&] {
        fs::rename(run, root.path() / "moved");
        fs::create_directories(run);
        data::write_text(run / "lock", "another run");
      });
      const auto action = [&] {
        if (while_writing) {
          writer->finish();
        } else {
          writer->save(state_at(1));
        }
      };
      expect_agreed(ErrorKind::kCheckpoint, action, (run / "lock").string(),
                    std::string("replaced"));
      writer->finish();
      EXPECT_EQ(writer->saved_step(), -1);
      on_rank0([&] {
        EXPECT_EQ(std::distance(fs::directory_iterator(run), {}), 1);
        EXPECT_EQ(data::read_file(run / "lock", ErrorKind::kCheckpoint), "another run");
      });
    }
  }
}

}  // namespace
}  // namespace k25::trainer
