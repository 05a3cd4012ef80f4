#pragma once
// The cards that k25 plan knows, and what each sustains.

#include <optional>
#include <string>
#include <vector>

#include "kernels/core/tensor.h"
#include "trainer/plan/ceilings.h"

namespace k25::trainer {

/// Where a card's ceilings come from.
enum class Source : std::uint8_t {
  kMeasured,      ///< by us on this card
  kEstimated,     ///< the vendor's figures times what an H200 reaches of its own
  kCeilingsFile,  ///< by k25 doctor --measure
  kUnknown,
};
std::string_view source_text(Source source);

struct Card {
  std::string name;
  Device device = Device::kCuda;
  std::optional<Bytes> memory;       ///< that programs may have of one GPU; absent: not checked
  Ceilings ceilings;                 ///< sustained
  std::optional<double> peak_tflop;  ///< the vendor's, dense bf16
  std::optional<double> network_gb;  ///< usual network of one GPU, by the vendor; never measured
  Source source = Source::kUnknown;
};

/// In the order in which they are shown by default: without `cpu`.
std::vector<Card> known_cards();

/// Also `cpu`, whose memory and ceilings only a file can tell. Throws kUsage with the nearest name.
Card find_card(const std::string& name);

/// What a GPU holds besides the arenas that are planned: the CUDA context, kernels, NCCL's buffers,
/// the libraries' handles.
inline constexpr Bytes kReservedOnGpu{std::int64_t{3} << 29};

}  // namespace k25::trainer
