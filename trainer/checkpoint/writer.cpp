// Saving: snapshot, write behind, agree, rename, retain.

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "data/io/atomic_file.h"
#include "data/io/h5_layout.h"
#include "kernels/core/stopwatch.h"
#include "parallel/comm/agree.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/digest.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/step_folder.h"

namespace k25::trainer {
namespace {

namespace fs = std::filesystem;
using parallel::collectively;

// This rank's part of one unit.
struct Part {
  int unit = 0;
  std::int64_t begin = 0, length = 0;  // elements of the unit
  std::int64_t local = 0;              // offset inside the rank's tensors
  std::int64_t at = 0;  // offset of `master` in the snapshot, elements; m and v follow
};

// Master, m and v of the largest range that a rank owns.
std::int64_t snapshot_elements(const parallel::UnitLayout& layout) {
  return 3 * std::min(layout.owned_elems, layout.numel);
}

// All ranks' strings, in rank order, on every rank.
std::vector<std::string> gather_strings(parallel::Communicator& comm, const std::string& mine) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<std::int64_t> sizes(ranks, 0);
  sizes[static_cast<std::size_t>(comm.rank())] = static_cast<std::int64_t>(mine.size());
  comm.all_gather({.name = "file digests"}, {sizes.data(), Bytes{8}}).wait();
  const auto largest = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::vector<char> all(ranks * largest);
  std::copy(
      mine.begin(), mine.end(),
      all.begin() + static_cast<std::ptrdiff_t>(largest * static_cast<std::size_t>(comm.rank())));
  comm.all_gather({.name = "file digests"}, {all.data(), Bytes{static_cast<std::int64_t>(largest)}})
      .wait();
  std::vector<std::string> strings;
  for (std::size_t r = 0; r < ranks; ++r) {
    strings.emplace_back(all.data() + r * largest, static_cast<std::size_t>(sizes[r]));
  }
  return strings;
}

}  // namespace

struct CheckpointWriter::Impl {
  parallel::Mesh& mesh;
  parallel::ZeroStore& store;
  fs::path run_dir;
  const RunLock* lock;  // rank 0
  CheckpointConfig config;
  DebugKill kill;
  std::string resolved;
  std::optional<fs::path> resumed_from;

  std::vector<Part> parts;
  Buffer snapshot;
  std::thread writer;
  std::atomic<bool> written{false};
  std::optional<Error> failure;  // of this rank's write; valid once `written`
  data::FileDigest digest;       // likewise
  bool pending = false;
  TrainState state;  // of the pending save
  TensorDigests digests;
  std::int64_t saved_step = -1;
  std::int64_t best = -1;      // step to point RUN/best at when it is committed
  std::set<std::string> told;  // of what could not be removed: once each
  double seconds = 0.0;

  bool writes_file() const { return mesh.coordinate().replicate == 0; }
  bool is_root() const { return mesh.world().rank() == 0; }
  fs::path folder() const { return run_dir / "checkpoints" / step_folder_name(state.step); }
  fs::path unfinished() const { return folder().string() + ".tmp"; }

  void kill_at(const char* point) const {
    const bool here = kill.point == point && kill.rank == mesh.world().rank();
    if (here && (kill.step == 0 || kill.step == state.step)) ::kill(getpid(), kill.signal);
  }

  void plan_parts();
  void take_snapshot();
  void save(const TrainState& now);
  void poll();
  void finish();
  void start_writing();
  void write_file() noexcept;
  void commit();
  Manifest make_manifest(const std::vector<std::string>& file_digests) const;
  void publish(const Manifest& manifest) const;
  void point_and_retain();
  void report_failure(ErrorKind kind, const std::string& message) const;
  void require_held() const;
  void require_held_here() const;
  void point(const char* pointer, std::int64_t step) const;
};

void CheckpointWriter::Impl::plan_parts() {
  std::int64_t at = 0;
  for (int u = 0; u < store.num_units(); ++u) {
    const parallel::ZeroStore::Range owned = store.owned(u);
    Part part{
        .unit = u, .begin = store.shard_begin(u) + owned.begin, .local = owned.begin, .at = at};
    part.length = std::clamp<std::int64_t>(store.layout(u).numel - part.begin, 0, owned.length);
    at += 3 * part.length;
    parts.push_back(part);
  }
}

void CheckpointWriter::Impl::take_snapshot() {
  auto* to = static_cast<float*>(snapshot.data());
  for (const Part& part : parts) {
    const auto n = static_cast<std::size_t>(part.length);
    float* const first = to + part.at;
    store.read_state(part.unit, part.local,
                     {.master = {first, n}, .m = {first + n, n}, .v = {first + 2 * n, n}});
  }
}

// On the writer thread.
void CheckpointWriter::Impl::write_file() noexcept {
  try {
    data::H5Layout layout;
    for (const Part& part : parts) {
      for (const char* tensor : kTensorNames) {
        layout[dataset_name(store.layout(part.unit).name, tensor)] = {data::H5Type::kF32,
                                                                      {part.length}};
      }
    }
    const fs::path path = unfinished() / shard_file_name(mesh.shard_comm().rank());
    data::H5Writer file(path, layout, ErrorKind::kCheckpoint);
    const auto* from = static_cast<const float*>(snapshot.data());
    for (const Part& part : parts) {
      for (int t = 0; t < 3; ++t) {
        file.write(dataset_name(store.layout(part.unit).name, kTensorNames[t]), Bytes{0},
                   std::as_bytes(std::span(from + part.at + t * part.length,
                                           static_cast<std::size_t>(part.length))));
      }
    }
    digest = file.finish();
    kill_at("after_shard_write");
  } catch (const std::exception& error) {
    failure = as_error(error);
  }
  written = true;
}

void CheckpointWriter::Impl::start_writing() {
  failure.reset();
  written = !writes_file();
  pending = true;
  if (!writes_file()) return;
  try {
    writer = std::thread([this] { write_file(); });
  } catch (const std::system_error& error) {
    failure = as_error(error);
    written = true;
  }
}

Manifest CheckpointWriter::Impl::make_manifest(const std::vector<std::string>& file_digests) const {
  Manifest manifest{.state = state, .config = resolved, .digests = digests};
  for (std::size_t i = 0; i < file_digests.size(); ++i) {
    const nlohmann::json j = nlohmann::json::parse(file_digests[i]);
    manifest.files.push_back(
        {shard_file_name(static_cast<int>(i)), data::FileDigest{j.at("size"), j.at("blocks")}});
  }
  const auto ranks = static_cast<std::int64_t>(file_digests.size());
  for (int u = 0; u < store.num_units(); ++u) {
    const parallel::UnitLayout& layout = store.layout(u);
    ManifestUnit unit = describe_unit(layout);
    for (std::int64_t r = 0; r < ranks; ++r) {
      const std::int64_t begin = std::min(r * layout.owned_elems, layout.numel);
      const std::int64_t end = std::min(begin + layout.owned_elems, layout.numel);
      unit.ranges.push_back({static_cast<int>(r), begin, end - begin});
    }
    manifest.units.push_back(unit);
  }
  return manifest;
}

// Every rank comes here (and may be told to die here); rank 0 does the work.
void CheckpointWriter::Impl::publish(const Manifest& manifest) const {
  if (is_root()) {
    for (const ManifestFile& file : manifest.files) {  // all there, with the right size
      data::verify_file(unfinished() / file.name, file.digest, ErrorKind::kCheckpoint, {0}, {0});
    }
    data::write_file_atomically(unfinished() / kManifestName, to_json(manifest),
                                ErrorKind::kCheckpoint);
  }
  kill_at("before_rename");
  if (!is_root()) return;
  require_held_here();
  with_file_errors([&] {
    const std::string aside = move_into_place(unfinished(), folder());
    if (aside.empty()) return;
    fmt::print(stderr, "k25: warning: {} appeared while this run went on and is now {}\n",
               folder().string(), aside);
  });
}

void CheckpointWriter::Impl::point_and_retain() {
  kill_at("after_rename_before_latest");
  if (!is_root()) return;
  point("latest", state.step);
  if (best == state.step) point("best", best);
  require_held_here();  // syncing the folder may have taken a while
  std::vector<std::string> stay;
  try {
    with_file_errors([&] { stay = retain(run_dir, state.step, config.keep, resumed_from); });
  } catch (const Error& error) {  // the new checkpoint is complete all the same
    stay = {error.what()};
  }
  for (const std::string& line : stay) {
    if (told.insert(line).second) {
      fmt::print(stderr, "k25: warning: an old checkpoint was not removed: {}\n", line);
    }
  }
}

// Called on all ranks, with an error they agreed upon. Its kind stays: memory or threads that the
// system does not give are no fault of the run directory.
void CheckpointWriter::Impl::report_failure(ErrorKind kind, const std::string& message) const {
  require_held();
  if (config.on_error == OnCheckpointError::kStop) {
    throw parallel::AgreedError(kind, message, 0);
  }
  if (is_root()) fmt::print(stderr, "k25: warning: {}\n", message);
}

// Collective. A run directory that is ours no longer ends the run: a warning would not help, and
// nothing of what stands there now may be touched.
void CheckpointWriter::Impl::require_held() const {
  collectively(mesh.world().comm(), "run directory", [&] { require_held_here(); });
}

// Of this rank alone, right before it writes: a collective may take longer than a rename.
void CheckpointWriter::Impl::require_held_here() const {
  if (lock != nullptr) lock->require_held();
}

void CheckpointWriter::Impl::point(const char* pointer, std::int64_t step) const {
  write_pointer(run_dir, pointer, step_folder_name(step), [&] { require_held_here(); });
}

// Collective, once every rank has written.
void CheckpointWriter::Impl::commit() {
  if (writer.joinable()) writer.join();
  pending = false;
  require_held();
  parallel::Communicator& world = mesh.world().comm();
  try {
    collectively(world, "checkpoint", [&] {
      if (failure) throw Error(*failure);
    });
    const std::vector<std::string> file_digests = gather_strings(
        mesh.shard_comm(), nlohmann::json{{"size", digest.size}, {"blocks", digest.blocks}}.dump());
    collectively(world, "checkpoint",
                 [&] { publish(is_root() ? make_manifest(file_digests) : Manifest{}); });
  } catch (const parallel::AgreedError& error) {
    require_held();  // it may have gone this moment: then neither the reason nor the folder is ours
    if (is_root()) {
      std::error_code ignored;
      fs::remove_all(unfinished(), ignored);
    }
    return report_failure(error.kind(), fmt::format("the checkpoint of step {} was not saved: {}; "
                                                    "older checkpoints and 'latest' are untouched",
                                                    state.step, error.what()));
  }
  saved_step = state.step;
  try {
    collectively(world, "latest checkpoint", [&] { point_and_retain(); });
  } catch (const parallel::AgreedError& error) {
    report_failure(error.kind(),
                   fmt::format("{} is complete, but: {}", folder().string(), error.what()));
  }
}

CheckpointWriter::CheckpointWriter(parallel::Mesh& mesh, parallel::ZeroStore& store,
                                   const fs::path& run_dir, const RunLock* lock,
                                   const CheckpointConfig& config, const DebugKill& kill,
                                   const std::string& resolved_config,
                                   std::optional<fs::path> resumed_from, Allocator& allocator)
    : impl_(new Impl{.mesh = mesh,
                     .store = store,
                     .run_dir = run_dir,
                     .lock = lock,
                     .config = config,
                     .kill = kill,
                     .resolved = resolved_config,
                     .resumed_from = std::move(resumed_from)}) {
  impl_->plan_parts();
  // As much on every rank, as planned; the last ranks' parts may be smaller.
  std::int64_t elements = 0;
  for (int u = 0; u < store.num_units(); ++u) elements += snapshot_elements(store.layout(u));
  impl_->snapshot = Buffer(Bytes{elements * 4}, allocator, "checkpoint snapshot");
}

CheckpointWriter::~CheckpointWriter() {
  if (impl_->writer.joinable()) impl_->writer.join();
}

Bytes CheckpointWriter::plan(const std::vector<parallel::UnitSpec>& units,
                             const parallel::MeshShape& mesh) {
  std::int64_t elements = 0;
  const std::int64_t shards = std::int64_t{mesh.shard} * mesh.expert * mesh.context;
  for (const parallel::UnitSpec& unit : units) {
    elements += snapshot_elements(parallel::make_layout(unit, shards, DType::kFloat32));
  }
  return Bytes{elements * 4};
}

void CheckpointWriter::Impl::save(const TrainState& now) {
  if (pending && state.step == now.step) return;
  finish();
  if (saved_step == now.step) return;
  require_held();
  state = now;
  try {
    collectively(mesh.world().comm(), "checkpoint folder", [&] {
      if (!is_root()) return;
      require_held_here();
      with_file_errors([&] { make_unfinished(folder()); });
    });
  } catch (const parallel::AgreedError& error) {
    return report_failure(error.kind(), fmt::format("the checkpoint of step {} was not saved: {}",
                                                    state.step, error.what()));
  }
  take_snapshot();
  digests = digest_store(mesh, store);
  start_writing();
  if (!config.asynchronous) finish();
}

void CheckpointWriter::Impl::poll() {
  if (!pending) return;
  std::int64_t all_written = written ? 1 : 0;
  mesh.world()
      .comm()
      .all_reduce_small({.name = "checkpoint written"},
                        {.integers = &all_written, .count = 1, .op = parallel::ReduceOp::kMin})
      .wait();
  if (all_written != 0) commit();
}

// Asks again and again instead of waiting for the writer thread: a slow disk on one rank must not
// look like a lost peer to the others.
void CheckpointWriter::Impl::finish() {
  while (pending) {
    poll();
    if (pending) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void CheckpointWriter::save(const TrainState& state) {
  const ScopedTimer timer(impl_->seconds);
  impl_->save(state);
}

void CheckpointWriter::poll() {
  const ScopedTimer timer(impl_->seconds);
  impl_->poll();
}

void CheckpointWriter::finish() {
  const ScopedTimer timer(impl_->seconds);
  impl_->finish();
}

void CheckpointWriter::mark_best(std::int64_t step) {
  Impl& w = *impl_;
  w.best = step;
  if (w.pending || w.saved_step != step) return;  // point_and_retain() will do it
  w.require_held();
  try {
    collectively(w.mesh.world().comm(), "best checkpoint", [&] {
      if (w.is_root()) w.point("best", step);
    });
  } catch (const parallel::AgreedError& error) {
    w.report_failure(error.kind(), error.what());
  }
}

std::int64_t CheckpointWriter::saved_step() const { return impl_->saved_step; }

double CheckpointWriter::take_seconds() { return std::exchange(impl_->seconds, 0.0); }

}  // namespace k25::trainer
