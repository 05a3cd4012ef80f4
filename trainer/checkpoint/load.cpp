// Reading a checkpoint at any rank count.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "data/io/h5_layout.h"
#include "parallel/comm/agree.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/digest.h"
#include "trainer/checkpoint/manifest.h"

namespace k25::trainer {
namespace {

// One piece to copy: elements [begin, begin + length) of a unit, from a file into this rank's
// tensors.
struct Piece {
  int unit = 0;
  const ManifestUnit* source = nullptr;
  ManifestRange range;  // of the file
  std::int64_t begin = 0, length = 0;
};

void require_same_units(const Manifest& manifest, const parallel::ZeroStore& store,
                        const std::string& folder) {
  std::string differences, moved;
  std::set<std::string> known;
  for (int u = 0; u < store.num_units(); ++u) {
    const ManifestUnit wanted = describe_unit(store.layout(u));
    known.insert(wanted.name);
    const auto found =
        std::find_if(manifest.units.begin(), manifest.units.end(),
                     [&](const ManifestUnit& unit) { return unit.name == wanted.name; });
    if (found == manifest.units.end()) {
      differences += "\n  unit '" + wanted.name + "' is not in the checkpoint";
      continue;
    }
    for (const ManifestParameter& p : wanted.parameters) {
      const auto same = [&](const ManifestParameter& q) { return q.name == p.name; };
      const auto has = std::find_if(found->parameters.begin(), found->parameters.end(), same);
      if (has == found->parameters.end()) {
        differences += "\n  parameter '" + p.name + "' is not in the checkpoint";
      } else if (has->shape != p.shape) {
        differences +=
            fmt::format("\n  parameter '{}' has shape {} in the checkpoint, {} in the model",
                        p.name, shape_string(has->shape), shape_string(p.shape));
      } else if (has->offset != p.offset) {
        moved += fmt::format(
            "\n  parameter '{}' begins at element {} in the checkpoint, {} in the "
            "model",
            p.name, has->offset, p.offset);
      }
    }
    for (const ManifestParameter& p : found->parameters) {
      const auto same = [&](const ManifestParameter& q) { return q.name == p.name; };
      if (std::none_of(wanted.parameters.begin(), wanted.parameters.end(), same)) {
        differences += "\n  parameter '" + p.name + "' is not in the model";
      }
    }
  }
  for (const ManifestUnit& unit : manifest.units) {
    if (known.count(unit.name) == 0)
      differences += "\n  unit '" + unit.name + "' is not in the model";
  }
  if (differences.empty()) differences = moved;  // otherwise it follows from the others
  if (!differences.empty()) {
    fail(ErrorKind::kCheckpoint, folder + " does not fit the configured model:" + differences);
  }
}

void require_digest(const std::filesystem::path& folder, const char* tensor,
                    const std::string& expected, const std::string& actual) {
  if (expected == actual) return;
  fail(ErrorKind::kCheckpoint,
       fmt::format("{}: the digest of tensor '{}' after loading is {}, the manifest says {}",
                   folder.string(), tensor, actual, expected));
}

class Loader {
 public:
  Loader(parallel::ZeroStore& store, const std::filesystem::path& folder, const Manifest& manifest,
         int tensors)
      : store_(store), folder_(folder), manifest_(manifest), tensors_(tensors) {}

  void run() {
    plan();
    open_and_verify();
    for (const Piece& piece : pieces_) copy(piece);
  }

 private:
  void plan() {
    for (int u = 0; u < store_.num_units(); ++u) {
      const parallel::UnitLayout& layout = store_.layout(u);
      const std::int64_t begin = store_.shard_begin(u);
      const std::int64_t end = std::min(begin + store_.master(u).numel(), layout.numel);
      const auto source =
          std::find_if(manifest_.units.begin(), manifest_.units.end(),
                       [&](const ManifestUnit& unit) { return unit.name == layout.name; });
      std::int64_t covered = 0;
      for (const ManifestRange& range : source->ranges) {
        const std::int64_t first = std::max(begin, range.begin);
        const std::int64_t last = std::min(end, range.begin + range.length);
        if (first >= last) continue;
        pieces_.push_back({u, &*source, range, first, last - first});
        covered += last - first;
      }
      if (covered != std::max<std::int64_t>(end - begin, 0)) {
        fail(ErrorKind::kCheckpoint, fmt::format("{}: unit '{}' lacks elements of [{}, {})",
                                                 folder_.string(), layout.name, begin, end));
      }
    }
  }

  // Each 64 MiB block that some piece touches is hashed once.
  void open_and_verify() {
    std::map<int, std::set<std::int64_t>> blocks;
    for (const Piece& piece : pieces_) {
      const int index = piece.range.file;
      const ManifestFile& file = manifest_.files[static_cast<std::size_t>(index)];
      if (files_.count(index) == 0) {
        // Size first: a truncated file must not reach the HDF5 library.
        data::verify_file(folder_ / file.name, file.digest, ErrorKind::kCheckpoint, {0}, {0});
        files_.emplace(index, data::H5File(folder_ / file.name, ErrorKind::kCheckpoint));
      }
      for (int t = 0; t < tensors_; ++t) {
        const auto& [first, last] = byte_range(piece, t);
        for (std::int64_t b = first / data::kDigestBlock; b * data::kDigestBlock < last; ++b) {
          blocks[index].insert(b);
        }
      }
    }
    for (const auto& [index, wanted] : blocks) {
      const ManifestFile& file = manifest_.files[static_cast<std::size_t>(index)];
      for (const std::int64_t b : wanted) {
        data::verify_file(folder_ / file.name, file.digest, ErrorKind::kCheckpoint,
                          {b * data::kDigestBlock}, {(b + 1) * data::kDigestBlock});
      }
    }
  }

  std::pair<std::int64_t, std::int64_t> byte_range(const Piece& piece, int tensor) const {
    const std::string name = dataset_name(piece.source->name, kTensorNames[tensor]);
    const data::H5Dataset& dataset = files_.at(piece.range.file).dataset(name, data::H5Type::kF32);
    if (dataset.bytes() != piece.range.length * 4) {
      fail(
          ErrorKind::kCheckpoint,
          fmt::format(
              "{}: dataset {} has {} bytes, the manifest says {}",
              (folder_ / manifest_.files[static_cast<std::size_t>(piece.range.file)].name).string(),
              name, dataset.bytes(), piece.range.length * 4));
    }
    const std::int64_t offset = dataset.offset + (piece.begin - piece.range.begin) * 4;
    return {offset, offset + piece.length * 4};
  }

  void copy(const Piece& piece) {
    const data::H5File& file = files_.at(piece.range.file);
    std::vector<float> values[3];
    for (std::int64_t done = 0; done < piece.length; done += kStatePiece) {
      const std::int64_t begin = piece.begin + done;
      for (int t = 0; t < tensors_; ++t) {
        values[t].resize(static_cast<std::size_t>(std::min(kStatePiece, piece.length - done)));
        file.read_values(
            file.dataset(dataset_name(piece.source->name, kTensorNames[t]), data::H5Type::kF32),
            begin - piece.range.begin, std::span(values[t]));
      }
      store_.write_state(piece.unit, begin - store_.shard_begin(piece.unit),
                         {.master = values[0], .m = values[1], .v = values[2]});
    }
  }

  parallel::ZeroStore& store_;
  const std::filesystem::path& folder_;
  const Manifest& manifest_;
  int tensors_;
  std::vector<Piece> pieces_;
  std::map<int, data::H5File> files_;
};

}  // namespace

CheckpointInfo read_checkpoint_info(const std::filesystem::path& folder) {
  const Manifest manifest = read_manifest(folder);
  CheckpointInfo info{.folder = folder,
                      .state = manifest.state,
                      .config = manifest.config,
                      .ranks = static_cast<int>(manifest.files.size())};
  for (const ManifestUnit& unit : manifest.units) {
    for (const ManifestParameter& p : unit.parameters) {
      std::int64_t n = 1;
      for (const std::int64_t d : p.shape) n *= d;
      info.parameters += n;
    }
  }
  for (const ManifestFile& file : manifest.files) info.bytes += file.digest.size;
  return info;
}

TrainState load_checkpoint(parallel::Mesh& mesh, parallel::ZeroStore& store,
                           const std::filesystem::path& folder, LoadWhat what) {
  Manifest manifest;
  parallel::collectively(mesh.world().comm(), "load checkpoint", [&] {
    manifest = read_manifest(folder);
    require_same_units(manifest, store, folder.string());
    Loader(store, folder, manifest, what == LoadWhat::kAll ? 3 : 1).run();
  });
  store.invalidate();
  const TensorDigests loaded = digest_store(mesh, store);
  parallel::collectively(mesh.world().comm(), "loaded state", [&] {
    require_digest(folder, "master", manifest.digests.master, loaded.master);
    if (what == LoadWhat::kWeightsOnly) return;
    require_digest(folder, "m", manifest.digests.m, loaded.m);
    require_digest(folder, "v", manifest.digests.v, loaded.v);
  });
  return manifest.state;
}

}  // namespace k25::trainer
