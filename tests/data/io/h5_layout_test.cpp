#include "data/io/h5_layout.h"

#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <numeric>
#include <thread>

#include "tests/data/scratch_folder.h"

namespace k25::data {
namespace {

constexpr auto kKind = ErrorKind::kCheckpoint;

template <class T>
std::span<const std::byte> raw(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

std::vector<float> ramp(std::int64_t n) {
  std::vector<float> v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), 0.5f);
  return v;
}

/// One small finished file: /a/ramp f32 [3, 5], /z u8 [4], /empty i64 [0].
FileDigest write_small(const std::filesystem::path& path) {
  H5Writer writer(path,
                  {{"/a/ramp", {H5Type::kF32, {3, 5}}},
                   {"/empty", {H5Type::kI64, {0}}},
                   {"/z", {H5Type::kU8, {4}}}},
                  kKind);
  writer.write("/a/ramp", {0}, raw(ramp(15)));
  writer.write("/z", {0}, raw(std::vector<std::uint8_t>{1, 2, 3, 4}));
  return writer.finish();
}

TEST(H5Layout, RoundTripsEveryTypeNestedEmptyAndScalar) {
  const ScratchFolder folder;
  H5Layout layout;
  int i = 0;
  for (const auto type : {H5Type::kU8, H5Type::kU16, H5Type::kU32, H5Type::kI32, H5Type::kI64,
                          H5Type::kF32, H5Type::kF64, H5Type::kBF16}) {
    layout["/units/layers." + std::to_string(i++) + "/master"] = {type, {7, 3}};
    layout["/empty/" + std::string(h5_type_name(type))] = {type, {0, 4}};
  }
  layout["/scalar"] = {H5Type::kI64, {}};
  H5Writer writer(folder / "x.h5", layout, kKind);
  for (const auto& [name, dataset] : writer.layout()) {
    EXPECT_EQ(dataset.offset, dataset.bytes() == 0 ? -1 : dataset.offset);
    if (dataset.bytes() == 0) continue;
    EXPECT_GT(dataset.offset, 0) << name;
    EXPECT_EQ(dataset.offset % 4096, 0) << name;
    std::vector<std::uint8_t> payload(static_cast<std::size_t>(dataset.bytes()),
                                      static_cast<std::uint8_t>(dataset.offset / 4096 + 1));
    writer.write(name, {0}, raw(payload));
  }
  const auto written = writer.layout();
  const auto digest = writer.finish();
  EXPECT_EQ(digest, digest_file(folder / "x.h5", kKind));
  const auto read = read_h5_layout(folder / "x.h5", kKind);
  ASSERT_EQ(read.size(), written.size());
  const H5File file(folder / "x.h5", kKind);
  for (const auto& [name, dataset] : written) {
    ASSERT_TRUE(read.contains(name)) << name;
    EXPECT_EQ(read.at(name).type, dataset.type) << name;
    EXPECT_EQ(read.at(name).shape, dataset.shape) << name;
    EXPECT_EQ(read.at(name).offset, dataset.offset) << name;
    const auto bytes = file.values<std::byte>(name, dataset.type);
    ASSERT_EQ(static_cast<std::int64_t>(bytes.size()), dataset.bytes()) << name;
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) {
      return b == static_cast<std::byte>(dataset.offset / 4096 + 1);
    })) << name;
  }
}

TEST(H5Layout, OtherHdf5ReadersSeeTheValues) {
  const ScratchFolder folder;
  {
    H5Writer writer(folder / "x.h5", {{"/g/f", {H5Type::kF32, {2}}}, {"/b", {H5Type::kBF16, {3}}}},
                    kKind);
    writer.write("/g/f", {0}, raw(std::vector<float>{1.5f, -2.25f}));
    writer.write(
        "/b", {0},
        raw(std::vector<BFloat16>{BFloat16(1.5f), BFloat16(-0.0078125f), BFloat16(1e30f)}));
    writer.finish();
  }
  const hid_t file = H5Fopen((folder / "x.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  const hid_t f = H5Dopen2(file, "/g/f", H5P_DEFAULT), b = H5Dopen2(file, "/b", H5P_DEFAULT);
  float values[3] = {};
  ASSERT_GE(H5Dread(f, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
  EXPECT_EQ(values[0], 1.5f);
  EXPECT_EQ(values[1], -2.25f);
  ASSERT_GE(H5Dread(b, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
  EXPECT_EQ(values[0], 1.5f);
  EXPECT_EQ(values[1], -0.0078125f);
  EXPECT_EQ(values[2], static_cast<float>(BFloat16(1e30f)));
  H5Dclose(f);
  H5Dclose(b);
  H5Fclose(file);
}

TEST(H5Layout, SameContentSameBytes) {
  const ScratchFolder folder;
  const auto first = write_small(folder / "a.h5");
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // time stamps count seconds
  EXPECT_EQ(write_small(folder / "b.h5"), first);
}

TEST(H5Layout, AFileWithoutDatasets) {
  const ScratchFolder folder;
  H5Writer writer(folder / "x.h5", {}, kKind);
  writer.finish();
  EXPECT_TRUE(read_h5_layout(folder / "x.h5", kKind).empty());
}

TEST(H5Layout, DigestIsRightForEveryOrderOfWrites) {
  const ScratchFolder folder;
  const std::int64_t n = 40000;
  const auto values = ramp(n);
  const auto bytes = raw(values);
  const H5Layout layout = {{"/a", {H5Type::kF32, {n}}}, {"/b", {H5Type::kF32, {n}}}};
  const auto half = bytes.size() / 2;
  const auto run = [&](const std::string& name, auto writes) {
    H5Writer writer(folder / name, layout, kKind);
    writes(writer);
    const auto digest = writer.finish();
    EXPECT_EQ(digest, digest_file(folder / name, kKind)) << name;
    return digest;
  };
  const auto forward = run("forward", [&](H5Writer& w) {
    w.write("/a", {0}, bytes);
    w.write("/b", {0}, bytes.first(half));
    w.write("/b", {static_cast<std::int64_t>(half)}, bytes.subspan(half));
  });
  const auto backward = run("backward", [&](H5Writer& w) {
    w.write("/b", {static_cast<std::int64_t>(half)}, bytes.subspan(half));
    w.write("/b", {0}, bytes.first(half));
    w.write("/a", {0}, bytes);
  });
  const auto twice = run("twice", [&](H5Writer& w) {
    w.write("/a", {0}, bytes);
    w.write("/b", {0}, bytes);
    w.write("/a", {4}, bytes.first(4));
    w.write("/a", {4}, bytes.subspan(4, 4));
  });
  const auto threads = run("threads", [&](H5Writer& w) {
    std::vector<std::jthread> pool;
    for (std::size_t part = 0; part < 8; ++part) {
      pool.emplace_back([&, part] {
        const auto size = bytes.size() / 8;
        for (const auto* name : {"/b", "/a"}) {
          w.write(name, {static_cast<std::int64_t>(part * size)}, bytes.subspan(part * size, size));
        }
      });
    }
  });
  EXPECT_EQ(backward, forward);
  EXPECT_EQ(twice, forward);
  EXPECT_EQ(threads, forward);
  // What nobody wrote reads as zero, before, between and behind.
  run("partly", [&](H5Writer& w) { w.write("/b", {8}, bytes.first(8)); });
  run("nothing", [](H5Writer&) {});
}

TEST(H5Layout, AnUnfinishedFileIsRemoved) {
  const ScratchFolder folder;
  {
    H5Writer writer(folder / "x.h5", {{"/a", {H5Type::kF32, {4}}}}, kKind);
    writer.write("/a", {0}, raw(ramp(4)));
    EXPECT_EQ(folder.entries(), 1);
  }
  EXPECT_EQ(folder.entries(), 0);
}

TEST(H5Layout, RefusesWrongCalls) {
  const ScratchFolder folder;
  H5Writer writer(folder / "x.h5", {{"/a", {H5Type::kF32, {4}}}}, kKind);
  EXPECT_THROW(writer.write("/b", {0}, raw(ramp(1))), Error);
  EXPECT_THROW(writer.write("/a", {4}, raw(ramp(4))), Error);
  EXPECT_THROW(writer.write("/a", {-4}, raw(ramp(1))), Error);
  writer.finish();
  EXPECT_THROW(writer.write("/a", {0}, raw(ramp(1))), Error);
  EXPECT_THROW(writer.finish(), Error);
  for (const auto* name : {"a", "/", "/a/", "//a", "/a//b", ""}) {
    EXPECT_THROW(H5Writer(folder / "y.h5", {{name, {H5Type::kU8, {1}}}}, kKind), Error) << name;
  }
  EXPECT_THROW(H5Writer(folder / "y.h5", {{"/a", {H5Type::kU8, {1}}}, {"/a/b", {}}}, kKind), Error);
  EXPECT_THROW(H5Writer(folder / "y.h5", {{"/a", {H5Type::kU8, {-1}}}}, kKind), Error);
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_THROW(H5Writer(folder / "y.h5", {{"/a", {H5Type::kF64, {huge, huge}}}}, kKind), Error);
  EXPECT_EQ(folder.entries(), 1);
}

TEST(H5Layout, AnExistingFileIsNotTouched) {
  const ScratchFolder folder;
  write_text(folder / "x.h5", "mine");
  expect_error(
      kKind, [&] { H5Writer(folder / "x.h5", {{"/a", {H5Type::kU8, {1}}}}, kKind); },
      (folder / "x.h5").string(), "File exists");
  EXPECT_EQ(std::filesystem::file_size(folder / "x.h5"), 4u);
  expect_error(
      kKind, [&] { H5Writer(folder / "no/x.h5", {{"/a", {H5Type::kU8, {1}}}}, kKind); },
      (folder / "no/x.h5").string(), "No such file");
}

TEST(H5Layout, NoSpaceIsAnErrorBeforeAnyPayload) {
  const ScratchFolder folder;
  // 4 EiB: no file system here has it.
  const std::int64_t bytes = std::int64_t{1} << 62;
  expect_error(
      kKind, [&] { H5Writer(folder / "x.h5", {{"/a", {H5Type::kU8, {bytes}}}}, kKind); },
      (folder / "x.h5").string(), "cannot reserve", "No space left on device");
  EXPECT_EQ(folder.entries(), 0);
  // One that a file may have, but not this disk.
  const auto free = static_cast<std::int64_t>(std::filesystem::space(folder.path()).free);
  expect_error(
      kKind, [&] { H5Writer(folder / "x.h5", {{"/a", {H5Type::kU8, {4 * free}}}}, kKind); },
      (folder / "x.h5").string(), "cannot reserve " + std::to_string(4 * free).substr(0, 3),
      "free)", "No space left on device");
  EXPECT_EQ(folder.entries(), 0);
  write_small(folder / "y.h5");  // the library still works
}

TEST(H5Layout, TheFileSizeLimitIsAnError) {
  const ScratchFolder folder;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 256 * 1024;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error(
      kKind, [&] { H5Writer(folder / "x.h5", {{"/a", {H5Type::kU8, {300 * 1024}}}}, kKind); },
      (folder / "x.h5").string(), "cannot reserve", "File too large");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(folder.entries(), 0);
  write_small(folder / "y.h5");
}

TEST(H5Layout, AFailingPayloadWriteIsAnErrorAndTheFileGoes) {
  const ScratchFolder folder;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  {
    H5Writer writer(folder / "x.h5", {{"/a", {H5Type::kU8, {1 << 20}}}}, kKind);
    rlimit small = old;
    small.rlim_cur = 64 * 1024;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    expect_error(
        kKind, [&] { writer.write("/a", {0}, raw(std::vector<std::uint8_t>(1 << 20))); },
        (folder / "x.h5").string(), "cannot write", "File too large");
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  }
  EXPECT_EQ(folder.entries(), 0);
}

TEST(H5Layout, TruncatedForeignEmptyAndTextFiles) {
  const ScratchFolder folder;
  write_small(folder / "whole.h5");
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(folder / "whole.h5"));
  const auto expect_bad = [&](const std::string& name, auto... parts) {
    expect_error(
        kKind, [&] { read_h5_layout(folder / name, kKind); }, (folder / name).string(), parts...);
    expect_error(kKind, [&] { H5File(folder / name, kKind); }, (folder / name).string(), parts...);
  };
  for (const std::int64_t keep : {size - 1, size / 2, std::int64_t{96}, std::int64_t{52}}) {
    std::filesystem::copy_file(folder / "whole.h5", folder / "cut.h5");
    std::filesystem::resize_file(folder / "cut.h5", static_cast<std::uintmax_t>(keep));
    expect_bad("cut.h5", "expected " + std::to_string(size) + " bytes",
               "has " + std::to_string(keep), "truncated or unfinished");
    std::filesystem::remove(folder / "cut.h5");
  }
  write_text(folder / "zero.h5", "");
  expect_bad("zero.h5", "0 bytes", "truncated or unfinished");
  write_text(folder / "short.h5", "\x89HDF\r\n\x1a\n");
  expect_bad("short.h5", "8 bytes", "truncated or unfinished");
  write_text(folder / "text.h5",
             "This is a text file, and long enough to hold any header at all.\n");
  expect_bad("text.h5", "64 bytes", "truncated or unfinished");
  write_text(folder / "holes.h5", std::string(8192, '\0'));  // reserved, killed before the header
  expect_bad("holes.h5", "8192 bytes", "truncated or unfinished");
  std::filesystem::copy_file(folder / "whole.h5", folder / "long.h5");
  std::filesystem::resize_file(folder / "long.h5", static_cast<std::uintmax_t>(size + 1));
  expect_bad("long.h5", "expected " + std::to_string(size), "has " + std::to_string(size + 1));
  expect_bad("absent.h5", "No such file");
}

TEST(H5Layout, MissingDatasetWrongTypeAndForeignLayouts) {
  const ScratchFolder folder;
  write_small(folder / "x.h5");
  const H5File file(folder / "x.h5", kKind);
  EXPECT_TRUE(file.has("/z"));
  EXPECT_FALSE(file.has("/a"));
  EXPECT_TRUE(file.values<std::int64_t>("/empty", H5Type::kI64).empty());
  EXPECT_EQ(file.values<float>("/a/ramp", H5Type::kF32)[14], 14.5f);
  expect_error(
      kKind, [&] { file.dataset("/y", H5Type::kU8); }, (folder / "x.h5").string(), "/y", "missing");
  expect_error(kKind, [&] { file.dataset("/z", H5Type::kU16); }, "/z", "holds u8, expected u16");

  const hid_t other = H5Fcreate((folder / "y.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t extent = 8;
  const hid_t space = H5Screate_simple(1, &extent, nullptr);
  const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(list, 1, &extent);
  H5Dclose(H5Dcreate2(other, "chunked", H5T_STD_U8LE, space, H5P_DEFAULT, list, H5P_DEFAULT));
  H5Pclose(list);
  H5Sclose(space);
  H5Fclose(other);
  expect_error(
      kKind, [&] { read_h5_layout(folder / "y.h5", kKind); }, (folder / "y.h5").string(),
      "/chunked", "one piece");
}

TEST(H5Layout, MovesAndOutlivesRenames) {
  const ScratchFolder folder;
  write_small(folder / "x.h5");
  H5File a(folder / "x.h5", kKind);
  std::filesystem::rename(folder / "x.h5", folder / "y.h5");
  H5File b = std::move(a);
  EXPECT_EQ(b.values<std::uint8_t>("/z", H5Type::kU8)[3], 4);
  write_small(folder / "x.h5");
  b = H5File(folder / "x.h5", kKind);
  EXPECT_EQ(b.values<std::uint8_t>("/z", H5Type::kU8)[0], 1);
}

TEST(H5Layout, ReadsAPartAndNothingOutside) {
  const ScratchFolder folder;
  write_small(folder / "x.h5");
  const H5File file(folder / "x.h5", kKind);
  const H5Dataset& z = file.dataset("/z", H5Type::kU8);
  std::vector<std::uint8_t> two(2);
  file.read_values(z, 1, std::span(two));
  EXPECT_EQ(two, (std::vector<std::uint8_t>{2, 3}));
  const std::int64_t end = z.bytes();
  EXPECT_THROW(file.read_values(z, end - 1, std::span(two)), Error);
  EXPECT_THROW(file.read_values(z, -1, std::span(two)), Error);
}

// A memory map would end the process here.
TEST(H5Layout, AFileThatShrinksWhileItIsOpen) {
  const ScratchFolder folder;
  write_small(folder / "x.h5");
  const H5File file(folder / "x.h5", kKind);
  file.require_unchanged();
  const auto size = std::filesystem::file_size(folder / "x.h5");
  std::filesystem::resize_file(folder / "x.h5", 100);
  expect_error(
      kKind, [&] { file.values<std::uint8_t>("/z", H5Type::kU8); }, (folder / "x.h5").string(),
      "ends at byte 100", "truncated");
  expect_error(
      kKind, [&] { file.require_unchanged(); }, (folder / "x.h5").string(), "was shortened",
      std::to_string(size) + " bytes at first, now 100");
}

// CASES A52: the library has one lock.
TEST(H5Layout, ThreadsWriteAndReadAtOnce) {
  const ScratchFolder folder;
  write_small(folder / "shared.h5");
  std::vector<std::jthread> pool;
  for (int t = 0; t < 4; ++t) {
    pool.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto path = folder / (std::to_string(t) + "-" + std::to_string(i) + ".h5");
        verify_file(path, write_small(path), kKind);
        EXPECT_EQ(H5File(path, kKind).values<std::uint8_t>("/z", H5Type::kU8)[2], 3);
        EXPECT_EQ(read_h5_layout(folder / "shared.h5", kKind).size(), 3u);
        std::filesystem::remove(path);
      }
    });
  }
}

}  // namespace
}  // namespace k25::data
