#include "trainer/plan/cards.h"

#include <fmt/format.h>

#include "kernels/core/check.h"
#include "trainer/config/printable.h"
#include "trainer/config/yaml_tree.h"

namespace k25::trainer {
namespace {

/// The vendor's figures of one card, dense and without boost above its power limit.
struct DataSheet {
  const char* name;
  double memory_gib;  ///< what the driver leaves to programs (cudaMemGetInfo), not what is soldered
  double memory_gb_per_s, bf16_tflop;
  double link_gb_per_s;     ///< NVLink, one direction
  double network_gb_per_s;  ///< of one GPU in the usual server: InfiniBand HDR 25, NDR 50
};

constexpr DataSheet kDataSheets[] = {
    // NVIDIA A100 data sheet (2021): SXM 40 GB 1555 GB/s, 80 GB 2039 GB/s; 312 TFLOP/s, NVLink 600
    // GB/s both ways.
    {"a100-40", 39.39, 1555, 312, 300, 25},
    {"a100-80", 79.15, 2039, 312, 300, 25},
    // NVIDIA H100 data sheet (2023), SXM: 3.35 TB/s, 989 TFLOP/s, NVLink 900 GB/s both ways.
    {"h100", 79.10, 3350, 989, 450, 50},
    // NVIDIA H20, as its sellers list it: 96 GB, 4.0 TB/s, 148 TFLOP/s, NVLink 900 GB/s both ways.
    {"h20", 95.0, 4000, 148, 450, 50},
    // NVIDIA H200 data sheet (2024), SXM: 4.8 TB/s, 989 TFLOP/s, NVLink 900 GB/s both ways.
    {"h200", 139.7, 4800, 989, 450, 50},
    // NVIDIA HGX B200 data sheet (2025): 180 GB, 8 TB/s, 2250 TFLOP/s, NVLink 1800 GB/s both ways.
    {"b200", 178.3, 8000, 2250, 900, 50},
};

// An H200 under sustained load (driver 580, CUDA 13.0, 2026-11-29; docs/benchmarks.md): a copy in
// device memory; the products of a dense 1.27 B model at 32768 rows, all together; cuDNN's causal
// attention at T = 4096, D = 128, 16 heads and 8 kv heads; NCCL between two GPUs (NVLink multicast
// off).
constexpr double kCopy = 4254, kGemm = 662, kForward = 524, kBackward = 430;
constexpr double kAllGather = 228, kReduceScatter = 219;
constexpr const char* kMeasuredCard = "h200";

const DataSheet& measured_sheet() {
  for (const DataSheet& sheet : kDataSheets) {
    if (std::string_view(sheet.name) == kMeasuredCard) return sheet;
  }
  fail(ErrorKind::kInternal, "cards: the measured card is missing");
}

Card card_of(const DataSheet& sheet) {
  const DataSheet& measured = measured_sheet();
  const double memory = sheet.memory_gb_per_s / measured.memory_gb_per_s;
  const double flops = sheet.bf16_tflop / measured.bf16_tflop;
  const double link = sheet.link_gb_per_s / measured.link_gb_per_s;
  return {.name = sheet.name,
          .memory = Bytes{static_cast<std::int64_t>(sheet.memory_gib * 0x1p30)},
          .ceilings = {.copy_gb = kCopy * memory,
                       .gemm_tflop = kGemm * flops,
                       .attention_forward_tflop = kForward * flops,
                       .attention_backward_tflop = kBackward * flops,
                       .all_gather_gb = kAllGather * link,
                       .reduce_scatter_gb = kReduceScatter * link,
                       .triad_gb = std::nullopt},
          .peak_tflop = sheet.bf16_tflop,
          .network_gb = sheet.network_gb_per_s,
          .source = &sheet == &measured ? Source::kMeasured : Source::kEstimated};
}

}  // namespace

std::string_view source_text(Source source) {
  switch (source) {
    case Source::kMeasured:
      return "measured";
    case Source::kEstimated:
      return "estimated";
    case Source::kCeilingsFile:
      return "your file";
    case Source::kUnknown:
      return "unknown";
  }
  return "";
}

std::vector<Card> known_cards() {
  std::vector<Card> cards;
  for (const DataSheet& sheet : kDataSheets) cards.push_back(card_of(sheet));
  return cards;
}

Card find_card(const std::string& name) {
  if (name == "cpu") return {.name = "cpu", .device = Device::kCpu};
  std::vector<std::string> names;
  std::string list;
  for (const Card& card : known_cards()) {
    if (card.name == name) return card;
    names.push_back(card.name);
    list += card.name + ", ";
  }
  names.emplace_back("cpu");
  const std::string near = nearest(name, names);
  fail(ErrorKind::kUsage,
       fmt::format("--gpu: unknown card '{}'{}; known: {}cpu", printable_start(name),
                   near.empty() ? "" : " (did you mean '" + near + "'?)", list));
}

}  // namespace k25::trainer
