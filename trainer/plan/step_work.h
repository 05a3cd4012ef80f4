#pragma once
// What one rank computes and moves in a step, counted; and how long that takes at given ceilings.
//
// Bytes are those that each kernel must read and write in device memory, in operands and results;
// what a matrix product or attention moves is part of its ceiling.

#include <optional>
#include <vector>

#include "parallel/zero/zero_traffic.h"
#include "trainer/config/config.h"
#include "trainer/model/flops.h"
#include "trainer/model/model.h"
#include "trainer/plan/cards.h"

namespace k25::trainer {

/// GPUs in equal nodes, ranks in order of nodes.
struct Cluster {
  std::int64_t ranks = 1, per_node = 1;
  std::int64_t nodes() const { return ranks / per_node; }
};

/// One direction of one micro-batch.
struct PassWork {
  std::int64_t product_flops = 0, attention_forward_flops = 0, attention_backward_flops = 0;
  Bytes moved;
};

struct StepWork {
  TokenFlops token;
  LogitsFormed logits = LogitsFormed::kOnce;
  std::int64_t tokens = 0;                           ///< of the global batch
  std::int64_t model_flops = 0, hardware_flops = 0;  ///< of all ranks
  std::int64_t micro_batches = 0;                    ///< of one rank
  PassWork forward, backward;
  Bytes update;  ///< moved once a step: gradients, moments, masters, gathered copies
  parallel::ZeroTraffic traffic;
  /// Of the traffic, what leaves or enters the node at one GPU's network card.
  Bytes gather_network, reduce_network;
  /// Micro-batches whose forward, and whose backward, gather or reduce.
  std::int64_t gathering_forwards = 0, gathering_backwards = 0, reducing_backwards = 0;
};

/// Layers of recompute.layers.
std::int64_t recomputed_layers(const Config& config);

StepWork count_step(const Config& config, const Model& model, const parallel::ZeroOptions& options,
                    const Cluster& cluster);

/// Seconds of one step, every part at its ceiling.
struct StepTime {
  double products = 0.0, attention = 0.0, moved = 0.0;
  double gather = 0.0, reduce = 0.0;
  double exposed = 0.0;  ///< of gather and reduce, what computing does not hide
  double total() const { return products + attention + moved + exposed; }
};

/// `prefetch` 0 hides no gather. Empty, with the reason in `why`, when a ceiling that the step
/// needs is not known, or is one of another precision.
std::optional<StepTime> predict_step(const StepWork& work, const Card& card, DType precision,
                                     int prefetch, std::string& why);

}  // namespace k25::trainer
