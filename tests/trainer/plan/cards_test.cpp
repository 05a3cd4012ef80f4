#include "trainer/plan/cards.h"

#include <gtest/gtest.h>

#include "kernels/core/check.h"

namespace k25::trainer {
namespace {

TEST(Cards, TheMeasuredOneIsAsMeasured) {
  const Card h200 = find_card("h200");
  EXPECT_EQ(h200.source, Source::kMeasured);
  EXPECT_DOUBLE_EQ(*h200.ceilings.copy_gb, 4254);
  EXPECT_DOUBLE_EQ(*h200.ceilings.gemm_tflop, 662);
  EXPECT_DOUBLE_EQ(*h200.ceilings.attention_forward_tflop, 524);
  EXPECT_DOUBLE_EQ(*h200.ceilings.attention_backward_tflop, 430);
  EXPECT_DOUBLE_EQ(*h200.ceilings.all_gather_gb, 228);
  EXPECT_DOUBLE_EQ(*h200.ceilings.reduce_scatter_gb, 219);
}

TEST(Cards, OthersAreTheVendorsFiguresScaled) {
  const Card a100 = find_card("a100-80");
  EXPECT_EQ(a100.source, Source::kEstimated);
  EXPECT_DOUBLE_EQ(*a100.ceilings.copy_gb, 4254 * (2039.0 / 4800));
  EXPECT_DOUBLE_EQ(*a100.ceilings.gemm_tflop, 662 * (312.0 / 989));
  EXPECT_DOUBLE_EQ(*a100.ceilings.all_gather_gb, 228 * (300.0 / 450));
  for (const Card& card : known_cards()) {
    EXPECT_EQ(card.source == Source::kMeasured, card.name == "h200") << card.name;
    EXPECT_LT(*card.ceilings.gemm_tflop, *card.peak_tflop) << card.name;
    EXPECT_EQ(find_card(card.name).memory->n, card.memory->n);
  }
}

TEST(Cards, TheCpuHasNoFiguresOfItsOwn) {
  const Card cpu = find_card("cpu");
  EXPECT_EQ(cpu.device, Device::kCpu);
  EXPECT_FALSE(cpu.memory.has_value());
  EXPECT_FALSE(cpu.ceilings.gemm_tflop.has_value());
}

TEST(Cards, AnUnknownOneNamesTheNearest) {
  try {
    find_card("a100-8");
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(text.find("unknown card 'a100-8' (did you mean 'a100-80'?)"), std::string::npos)
        << text;
    EXPECT_NE(text.find("known: a100-40, a100-80, h100, h20, h200, b200, cpu"), std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace k25::trainer
