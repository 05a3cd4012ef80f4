// Headers with a flipped bit. Alone in its program, because HDF5 1.10 loses the object header (424
// bytes) whenever one does not match its check sum.
#include <gtest/gtest.h>

#include "data/io/atomic_file.h"
#include "data/io/h5_layout.h"
#include "tests/data/scratch_folder.h"

// NOLINTNEXTLINE(bugprone-reserved-identifier, readability-identifier-naming): LeakSanitizer's name
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

namespace k25::data {
namespace {

void write_small(const std::filesystem::path& path) {
  H5Writer writer(path,
                  {{"/a/ramp", {H5Type::kF32, {3, 5}}},
                   {"/empty", {H5Type::kI64, {0}}},
                   {"/z", {H5Type::kU8, {4}}}},
                  ErrorKind::kCheckpoint);
  writer.finish();
}

TEST(H5Damage, NoFlippedBitOfTheMetadataCrashes) {
  const ScratchFolder folder;
  write_small(folder / "x.h5");
  const auto good = read_h5_layout(folder / "x.h5", ErrorKind::kCheckpoint);
  std::int64_t caught = 0;
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(folder / "x.h5"));
  for (std::int64_t at = 0; at < size; at += at % 4096 < 320 ? 1 : 97) {
    flip_byte(folder / "x.h5", at);
    try {
      const auto layout = read_h5_layout(folder / "x.h5", ErrorKind::kCheckpoint);
      for (const auto& [name, dataset] : layout) {
        EXPECT_LE(dataset.offset + dataset.bytes(), size) << "byte " << at;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint) << error.what();
      ++caught;
    }
    flip_byte(folder / "x.h5", at);
  }
  EXPECT_GT(caught, 400);  // headers have check sums; payload and slack have not
  EXPECT_EQ(read_h5_layout(folder / "x.h5", ErrorKind::kCheckpoint).size(), good.size());
}

// Beyond eight links HDF5 keeps a group's names in a heap with an index of its own, as in the
// checkpoint of a model with more layers.
TEST(H5Damage, NoFlippedBitInAGroupOfManyLinksCrashes) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder / "x.h5";
  H5Layout many;
  for (int i = 0; i < 30; ++i) many["/units/layers." + std::to_string(i)] = {H5Type::kF32, {0}};
  H5Writer(path, many, ErrorKind::kCheckpoint).finish();
  std::int64_t caught = 0;
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path));
  const std::string content = read_file(path, ErrorKind::kCheckpoint);
  for (std::int64_t at = 0; at < size; ++at) {
    if (content[static_cast<std::size_t>(at)] == 0) continue;
    flip_byte(path, at);
    try {
      read_h5_layout(path, ErrorKind::kCheckpoint);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint) << error.what();
      ++caught;
    }
    flip_byte(path, at);
  }
  EXPECT_GT(caught, 400);
  EXPECT_EQ(read_h5_layout(path, ErrorKind::kCheckpoint).size(), many.size());
}

}  // namespace
}  // namespace k25::data
