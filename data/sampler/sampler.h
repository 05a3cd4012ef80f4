#pragma once
// Which sample comes n-th. A pure function of (seed, mixture state, global sample number), never of
// the rank count.
//
// Each domain's training documents are put in an order drawn per epoch, laid end to end, and cut
// into windows of `sequence` tokens (the last one padded): every token is seen once per epoch.
// Windows are visited in a permutation drawn per epoch. The domain of global sample n is drawn by
// Philox(seed, n) from the mixture's weights; the position inside the domain is the count of
// samples drawn from it before.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/corpus/corpus.h"

namespace k25::data {

/// Document indices of a side of the train/validation split.
struct Split {
  std::vector<std::int64_t> train, validation;
  std::int64_t moved = 0;  ///< documents that followed a near-duplicate to the validation side
};
struct SplitOptions {
  /// Shell patterns on Document::source or domain/source; * spans /.
  std::vector<std::string> documents;
  double fraction = 0.0;  ///< of tokens, those of `documents` included; whole clusters by seed
  std::uint64_t seed = 7;
};
/// Evaluation reads no training document.
enum class TrainingSide : std::uint8_t { kNeeded, kMayBeEmpty };
/// A pattern that matches nothing, or a split that leaves no training document where one is needed,
/// throws kData.
Split split_documents(const Corpus& corpus, const SplitOptions& options,
                      TrainingSide training = TrainingSide::kNeeded);

enum class OnExhausted : std::uint8_t { kWrap, kStop };

struct MixtureState {
  std::vector<double> weights;         ///< per domain, sum 1
  std::vector<std::int64_t> consumed;  ///< samples drawn per domain so far
  std::int64_t next_sample = 0;        ///< global sample number
  friend bool operator==(const MixtureState&, const MixtureState&) = default;
};

struct SampleRef {
  std::int64_t number = 0;  ///< global
  std::int32_t domain = 0;
  std::int64_t epoch = 0;   ///< of the domain
  std::int64_t window = 0;  ///< in the epoch's packed stream
};

struct SamplerOptions {
  std::int64_t sequence = 0;
  std::uint64_t seed = 7;
  std::map<std::string, double> weights;  ///< by domain name, 0 when not named; empty: by tokens
  OnExhausted on_exhausted = OnExhausted::kWrap;
};

class Sampler {
 public:
  /// Throws kUsage for unknown domains, negative weights, weights that sum to 0, or a weight for a
  /// domain without training documents. `corpus` must outlive the sampler.
  Sampler(const Corpus& corpus, const std::vector<std::int64_t>& documents,
          const SamplerOptions& options);
  ~Sampler();

  MixtureState initial_state() const;
  /// The next `count` samples; advances `state`. With kStop, throws kData when a domain's epoch has
  /// ended before them, and leaves `state` as it was.
  std::vector<SampleRef> draw(MixtureState& state, std::int64_t count) const;
  std::int64_t windows_per_epoch(std::int32_t domain) const;
  /// Pieces of documents that make up a window: corpus token ranges, in order.
  struct Piece {
    std::int64_t document = 0, begin = 0, end = 0;
  };
  std::vector<Piece> pieces(const SampleRef& sample) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace k25::data
