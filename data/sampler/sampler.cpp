#include "data/sampler/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>

#include "data/sampler/document_stream.h"
#include "data/sampler/permutation.h"
#include "fmt/format.h"
#include "kernels/core/check.h"
#include "kernels/core/philox.h"

namespace k25::data {

namespace {

/// One domain's documents in the order of one epoch.
struct EpochStream {
  std::int64_t epoch = -1;
  std::vector<std::int64_t> documents;
  std::vector<std::int64_t> starts;
};

struct Domain {
  std::string name;
  std::vector<std::int64_t> documents;
  std::int64_t tokens = 0;
  std::int64_t windows = 0;
};

}  // namespace

struct Sampler::Impl {
  const Corpus& corpus;
  SamplerOptions options;
  std::vector<Domain> domains;
  std::vector<double> weights;

  /// An epoch's order is made once. A batch may straddle two epochs, so two are kept per domain.
  mutable std::mutex mutex;
  mutable std::vector<std::array<std::shared_ptr<const EpochStream>, 2>> streams;

  Impl(const Corpus& c, const SamplerOptions& o) : corpus(c), options(o) {}

  void build_weights();
  std::int32_t draw_domain(const std::vector<double>& weights_now, std::int64_t number) const;
  std::shared_ptr<const EpochStream> stream(std::int32_t domain, std::int64_t epoch) const;
};

void Sampler::Impl::build_weights() {
  const bool by_tokens = options.weights.empty();
  for (const auto& [name, weight] : options.weights) {
    const auto same = [&](const Domain& d) { return d.name == name; };
    const auto found = std::find_if(domains.begin(), domains.end(), same);
    if (found == domains.end()) {
      std::string known;
      for (const Domain& d : domains) known += (known.empty() ? "'" : ", '") + d.name + "'";
      fail(ErrorKind::kUsage,
           fmt::format(
               "data.mixture.weights: mixture weight for unknown domain '{}', the corpus has {}",
               name, known));
    }
    if (!(weight >= 0.0) || !std::isfinite(weight)) {
      fail(
          ErrorKind::kUsage,
          fmt::format(
              "data.mixture.weights: mixture weight of domain '{}' is {}, expected a number from 0",
              name, weight));
    }
    if (weight > 0.0 && found->tokens == 0) {
      fail(ErrorKind::kUsage, fmt::format("data.mixture.weights: mixture weight of domain '{}' is "
                                          "{}, but the domain has no training "
                                          "documents: give it weight 0",
                                          name, weight));
    }
  }
  double sum = 0.0;
  for (const Domain& d : domains) {
    const auto given = options.weights.find(d.name);
    const double listed = given == options.weights.end() ? 0.0 : given->second;
    weights.push_back(by_tokens ? static_cast<double>(d.tokens) : listed);
    sum += weights.back();
  }
  if (!(sum > 0.0) || !std::isfinite(sum)) {
    fail(ErrorKind::kUsage,
         fmt::format("data.mixture.weights: mixture weights sum to {}, expected more than 0", sum));
  }
  for (double& w : weights) w /= sum;
}

std::int32_t Sampler::Impl::draw_domain(const std::vector<double>& weights_now,
                                        std::int64_t number) const {
  // 53 bits, so that rare domains get their share too.
  const Philox random(options.seed, 0, "mixture");
  const double u =
      static_cast<double>(random.below(static_cast<std::uint64_t>(number), 1ull << 53)) * 0x1p-53;
  double sum = 0.0;
  std::int32_t last = -1;
  for (std::size_t d = 0; d < weights_now.size(); ++d) {
    if (weights_now[d] <= 0.0) continue;
    last = static_cast<std::int32_t>(d);
    sum += weights_now[d];
    if (u < sum) break;
  }
  return last;  // rounding may leave the sum just under 1: the last domain takes the rest
}

std::shared_ptr<const EpochStream> Sampler::Impl::stream(std::int32_t domain,
                                                         std::int64_t epoch) const {
  const std::scoped_lock lock(mutex);
  auto& slot = streams[static_cast<std::size_t>(domain)][static_cast<std::size_t>(epoch & 1)];
  if (slot && slot->epoch == epoch) return slot;
  const Domain& d = domains[static_cast<std::size_t>(domain)];
  auto made = std::make_shared<EpochStream>();
  made->epoch = epoch;
  made->documents = d.documents;
  const Philox random(options.seed, static_cast<std::uint64_t>(epoch), "documents/" + d.name);
  for (std::size_t i = made->documents.size(); i > 1; --i) {  // Fisher and Yates
    std::swap(made->documents[i - 1], made->documents[random.below(i, i)]);
  }
  made->starts = stream_starts(corpus, made->documents);
  slot = made;
  return slot;
}

Sampler::Sampler(const Corpus& corpus, const std::vector<std::int64_t>& documents,
                 const SamplerOptions& options)
    : impl_(std::make_unique<Impl>(corpus, options)) {
  if (options.sequence < 1) {
    fail(ErrorKind::kUsage,
         fmt::format("a sequence of {} tokens, expected at least 1", options.sequence));
  }
  for (const auto& name : corpus.info().domains) impl_->domains.push_back({name, {}, 0, 0});
  for (const std::int64_t index : sorted_documents(corpus, documents)) {
    const Document& document = corpus.documents()[static_cast<std::size_t>(index)];
    Domain& d = impl_->domains[static_cast<std::size_t>(document.domain)];
    d.documents.push_back(index);
    d.tokens += document.token_end - document.token_begin;
  }
  for (Domain& d : impl_->domains) {
    d.windows = d.tokens / options.sequence + (d.tokens % options.sequence != 0 ? 1 : 0);
  }
  impl_->streams.resize(impl_->domains.size());
  impl_->build_weights();
}

Sampler::~Sampler() = default;

MixtureState Sampler::initial_state() const {
  return {impl_->weights, std::vector<std::int64_t>(impl_->domains.size(), 0), 0};
}

std::vector<SampleRef> Sampler::draw(MixtureState& state, std::int64_t count) const {
  const std::size_t n = impl_->domains.size();
  K25_CHECK(
      state.weights.size() == n && state.consumed.size() == n,
      fmt::format("a mixture state of {} domains for a corpus of {}", state.weights.size(), n));
  double sum = 0.0;
  for (const double w : state.weights) {
    K25_CHECK(w >= 0.0, fmt::format("mixture weight {}, expected a number from 0", w));
    sum += w;
  }
  K25_CHECK(std::abs(sum - 1.0) < 1e-9, fmt::format("mixture weights sum to {}, expected 1", sum));
  MixtureState next = state;  // on an error the caller's state stays as it was
  std::vector<SampleRef> samples;
  samples.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t domain = impl_->draw_domain(next.weights, next.next_sample);
    K25_CHECK(domain >= 0, "all mixture weights are 0");
    const Domain& d = impl_->domains[static_cast<std::size_t>(domain)];
    K25_CHECK(d.windows > 0, "mixture weight for domain '" + d.name + "', which has no documents");
    const std::int64_t position = next.consumed[static_cast<std::size_t>(domain)]++;
    if (impl_->options.on_exhausted == OnExhausted::kStop && position >= d.windows) {
      fail(ErrorKind::kData,
           fmt::format("domain '{}' is exhausted: all {} windows were drawn before sample {} and "
                       "data.on_exhausted is stop",
                       d.name, d.windows, next.next_sample));
    }
    SampleRef sample{next.next_sample++, domain, position / d.windows, 0};
    sample.window = Permutation(d.windows, impl_->options.seed,
                                static_cast<std::uint64_t>(sample.epoch), "windows/" + d.name)
                        .at(position % d.windows);
    samples.push_back(sample);
  }
  state = std::move(next);
  return samples;
}

std::int64_t Sampler::windows_per_epoch(std::int32_t domain) const {
  return impl_->domains.at(static_cast<std::size_t>(domain)).windows;
}

std::vector<Sampler::Piece> Sampler::pieces(const SampleRef& sample) const {
  const std::int64_t windows = windows_per_epoch(sample.domain);
  K25_CHECK(
      sample.window >= 0 && sample.window < windows && sample.epoch >= 0,
      fmt::format("window {} of domain {}, which has {}", sample.window, sample.domain, windows));
  const auto stream = impl_->stream(sample.domain, sample.epoch);
  const std::int64_t begin = sample.window * impl_->options.sequence;
  return stream_pieces(impl_->corpus, stream->documents, stream->starts, begin,
                       begin + impl_->options.sequence);
}

}  // namespace k25::data
