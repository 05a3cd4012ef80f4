// CASES A23: more than 2^31 tokens. The file is sparse: 6 GiB are read, nearly none are stored.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <unistd.h>

#include "data/corpus/corpus.h"
#include "data/io/atomic_file.h"
#include "data/io/h5_layout.h"
#include "data/loader/loader.h"
#include "nlohmann/json.hpp"
#include "tests/data/synthetic_corpus.h"

namespace k25::data {
namespace {

using nlohmann::json;

constexpr std::int64_t kTokens = (std::int64_t{1} << 31) + 10;
constexpr std::int64_t kLast = 15;  ///< tokens of the last document

hid_t hdf5_type(H5Type type) {
  switch (type) {
    case H5Type::kU16:
      return H5T_STD_U16LE;
    case H5Type::kI32:
      return H5T_STD_I32LE;
    case H5Type::kI64:
      return H5T_STD_I64LE;
    default:
      return H5T_STD_U8LE;
  }
}

/// The file that H5Writer would lay out, without its space being reserved.
void create_sparse(const std::filesystem::path& path, const H5Layout& layout) {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_alignment(access, 1, 4096);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  ASSERT_GE(file, 0);
  const hid_t list = H5Pcreate(H5P_DATASET_CREATE), links = H5Pcreate(H5P_LINK_CREATE);
  H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(list, H5D_FILL_TIME_NEVER);
  H5Pset_create_intermediate_group(links, 1);
  for (const auto& [name, dataset] : layout) {
    const auto extent = static_cast<hsize_t>(dataset.shape.at(0));
    const hid_t space = H5Screate_simple(1, &extent, nullptr);
    H5Dclose(
        H5Dcreate2(file, name.c_str(), hdf5_type(dataset.type), space, links, list, H5P_DEFAULT));
    H5Sclose(space);
  }
  H5Pclose(links);
  H5Pclose(list);
  H5Pclose(access);
  ASSERT_GE(H5Fclose(file), 0);
}

template <class T>
void put(int fd, const H5Layout& layout, const std::string& name, std::int64_t row,
         const std::vector<T>& values) {
  const auto bytes = values.size() * sizeof(T);
  ASSERT_EQ(::pwrite(fd, values.data(), bytes,
                     layout.at(name).offset + row * static_cast<std::int64_t>(sizeof(T))),
            static_cast<ssize_t>(bytes));
}

/// digest_file() without reading holes again and again.
FileDigest digest_sparse(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  const std::string zeros(kDigestBlock, '\0');
  const std::string hole = sha256_hex(zeros);
  FileDigest digest{static_cast<std::int64_t>(std::filesystem::file_size(path)), {}};
  for (std::int64_t at = 0; at < digest.size; at += kDigestBlock) {
    const auto n = std::min(kDigestBlock, digest.size - at);
    const std::int64_t data = ::lseek(fd, at, SEEK_DATA);
    if (n == kDigestBlock && (data < 0 || data >= at + n)) {
      digest.blocks.push_back(hole);
      continue;
    }
    std::string block(static_cast<std::size_t>(n), '\0');
    EXPECT_EQ(::pread(fd, block.data(), block.size(), at), n);
    digest.blocks.push_back(sha256_hex(block));
  }
  ::close(fd);
  return digest;
}

/// Makes the one file of a small corpus of two documents a corpus of kTokens, the last ones
/// numbered.
void enlarge(const std::filesystem::path& folder) {
  const auto path = folder / "tokens-00000.h5";
  const auto small = read_h5_layout(path, ErrorKind::kData);
  const std::string content = read_file(path, ErrorKind::kData);
  auto wanted = small;
  wanted.at("/tokens").shape = wanted.at("/labels").shape = {kTokens};
  create_sparse(path, wanted);
  const auto layout = read_h5_layout(path, ErrorKind::kData);
  const int fd = ::open(path.c_str(), O_WRONLY);
  ASSERT_GE(fd, 0);
  for (const auto& [name, dataset] : small) {
    if (name == "/tokens" || name == "/labels" || dataset.bytes() == 0) continue;
    const auto begin = content.begin() + dataset.offset;
    put(fd, layout, name, 0, std::vector<char>(begin, begin + dataset.bytes()));
  }
  put(fd, layout, "/documents/token_begin", 1, std::vector<std::int64_t>{kTokens - kLast});
  put(fd, layout, "/documents/token_end", 0, std::vector<std::int64_t>{kTokens - kLast, kTokens});
  std::vector<std::uint16_t> tokens(kLast);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{1});
  tokens.back() = 0;
  put(fd, layout, "/tokens", kTokens - kLast, tokens);
  put(fd, layout, "/labels", kTokens - kLast, std::vector<std::uint8_t>(kLast, 1));
  ::close(fd);

  json manifest = json::parse(read_file(folder / "manifest.json", ErrorKind::kData));
  const auto digest = digest_sparse(path);
  manifest["tokens"] = manifest["files"][0]["tokens"] = kTokens;
  manifest["files"][0]["size"] = digest.size;
  manifest["files"][0]["sha256"] = digest.blocks;
  manifest.erase("digest");
  manifest["digest"] = sha256_hex(manifest.dump());
  write_text(folder / "manifest.json", manifest.dump());
}

TEST(LargeCorpus, TheLastSampleOfMoreThan31Bits) {
  const ScratchFolder folder;
  const auto manifest = write_synthetic(folder, synthetic_content({{20}, {kLast}}));
  ASSERT_NO_FATAL_FAILURE(enlarge(manifest.parent_path()));
  const Corpus corpus(manifest, 2);
  ASSERT_EQ(corpus.info().tokens, kTokens);

  std::int32_t last[3] = {};
  std::uint8_t label[3] = {};
  corpus.read(kTokens - 3, kTokens, last, label);
  EXPECT_EQ(last[0], 13);
  EXPECT_EQ(last[2], 0);

  // Three tokens a window: their number passes 2^29, their tokens 2^31.
  const std::int64_t sequence = 3;
  const ValidationSet set(corpus, all_documents(corpus), sequence);
  ASSERT_EQ(set.windows(), (kTokens + 2) / 3);
  Batch batch;
  batch.resize(6, sequence);
  set.load(set.windows() - 6, batch);
  EXPECT_EQ(batch.sample.back(), set.windows() - 1);
  EXPECT_EQ(batch.label_tokens, kLast - 1);

  const Sampler sampler(corpus, all_documents(corpus), {sequence, 7, {}, OnExhausted::kWrap});
  ASSERT_EQ(sampler.windows_per_epoch(0), set.windows());
  auto state = sampler.initial_state();
  state.consumed = {set.windows() - 1};
  state.next_sample = std::int64_t{3'000'000'000};
  const auto samples = sampler.draw(state, 2);
  EXPECT_EQ(samples[0].epoch, 0);
  EXPECT_EQ(samples[1].epoch, 1);
  EXPECT_EQ(samples[1].number, 3'000'000'001);
  for (std::int64_t window = set.windows() - 6; window < set.windows(); ++window) {
    for (const auto& piece : sampler.pieces({0, 0, 0, window})) {
      EXPECT_LT(piece.begin, piece.end);
      EXPECT_GE(piece.begin, 0);
      EXPECT_LE(piece.end, kTokens);
    }
  }
}

}  // namespace
}  // namespace k25::data
