// What the doctor writes, the planner reads; anything else is refused with file, key and value.
#include "trainer/plan/ceilings.h"

#include <gtest/gtest.h>

#include <fstream>

#include "kernels/core/check.h"
#include "tests/data/scratch_folder.h"

namespace k25::trainer {
namespace {

constexpr const char* kGood = R"({"format": "k25 ceilings 1", "device": "NVIDIA H200", "ranks": 2,
  "memory_bytes": 150000000000, "precision": "bf16", "copy_gb_per_s": 4254,
  "gemm_tflop_per_s": 662.5, "attention_forward_tflop_per_s": 524,
  "attention_backward_tflop_per_s": 430, "all_gather_gb_per_s": null,
  "reduce_scatter_gb_per_s": 219, "triad_gb_per_s": 72})";

class CeilingsTest : public ::testing::Test {
 protected:
  CeilingsFile read(const std::string& text) {
    std::ofstream(path()) << text;
    return read_ceilings(path());
  }
  std::string refusal(const std::string& text) {
    try {
      read(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(error.what()).find("ceilings.json"), std::string::npos);
      return error.what();
    }
    return "";
  }
  static std::string with(const std::string& from, const std::string& to) {
    std::string text = kGood;
    return text.replace(text.find(from), from.size(), to);
  }
  std::filesystem::path path() const { return folder_.path() / "ceilings.json"; }

  data::ScratchFolder folder_;
};

TEST_F(CeilingsTest, ReadsWhatItWrites) {
  const CeilingsFile file = read(kGood);
  EXPECT_EQ(file.device, "NVIDIA H200");
  EXPECT_EQ(file.ranks, 2);
  ASSERT_TRUE(file.memory.has_value());
  EXPECT_EQ(file.memory->n, 150000000000);
  EXPECT_EQ(file.ceilings.precision, DType::kBFloat16);
  EXPECT_EQ(file.ceilings.gemm_tflop, 662.5);
  EXPECT_FALSE(file.ceilings.all_gather_gb.has_value());
  const CeilingsFile again = read(ceilings_json(file));
  EXPECT_EQ(ceilings_json(again), ceilings_json(file));
  EXPECT_EQ(again.ceilings.triad_gb, 72);
}

TEST_F(CeilingsTest, OthersAreRefused) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "no JSON"},
      {"{", "no JSON"},
      {"[1]", "is no JSON object"},
      {with("k25 ceilings 1", "k25 ceilings 9"), "format: expected \"k25 ceilings 1\""},
      {with("\"copy_gb_per_s\": 4254,", ""), "the key 'copy_gb_per_s' is missing"},
      {with("\"ranks\": 2", "\"ranks\": 2, \"copy_gb_per_sec\": 1"),
       "unknown key 'copy_gb_per_sec' (did you mean 'copy_gb_per_s'?)"},
      {with("4254", "0"), "copy_gb_per_s: expected a number above 0, or null, got 0"},
      {with("4254", "-1"), "copy_gb_per_s: expected a number above 0, or null, got -1"},
      {with("4254", "\"fast\""), "got \"fast\""},
      {with("4254", "1e999"), "no JSON"},
      {with("\"ranks\": 2", "\"ranks\": 0"), "ranks: expected a positive integer, got 0"},
      {with("\"ranks\": 2", "\"ranks\": 1.5"), "ranks: expected a positive integer"},
      {with("150000000000", "-1"), "memory_bytes: expected a positive integer"},
      {with("bf16", "fp8"), "precision: expected \"fp32\" or \"bf16\", got \"fp8\""},
      {with("NVIDIA H200", ""), "device: expected a text"},
  };
  for (const auto& [text, part] : cases) {
    EXPECT_NE(refusal(text).find(part), std::string::npos) << part << " not in: " << refusal(text);
  }
}

TEST_F(CeilingsTest, AMissingFileIsRefused) {
  EXPECT_THROW(read_ceilings(folder_.path() / "none.json"), Error);
  EXPECT_THROW(read_ceilings(folder_.path()), Error);
}

}  // namespace
}  // namespace k25::trainer
