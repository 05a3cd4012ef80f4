// Train and validation side of sampler.h.

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "data/sampler/permutation.h"
#include "data/sampler/sampler.h"
#include "fmt/format.h"
#include "kernels/core/check.h"

namespace k25::data {

namespace {

bool matches(const std::string& pattern, const std::string& text) {
  return ::fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
}

/// Marks the documents that a pattern names. Each pattern must name one.
std::vector<bool> named_documents(const Corpus& corpus, const std::vector<std::string>& patterns) {
  const auto documents = corpus.documents();
  std::vector<bool> named(documents.size());
  for (const auto& pattern : patterns) {
    bool found = false;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      const auto& domain = corpus.info().domains[static_cast<std::size_t>(documents[i].domain)];
      if (!matches(pattern, documents[i].source) &&
          !matches(pattern, domain + "/" + documents[i].source)) {
        continue;
      }
      named[i] = true;
      found = true;
    }
    if (found) continue;
    const std::string example = documents.empty() ? "" : documents.front().source;
    fail(ErrorKind::kData, fmt::format("data.validation.documents: pattern '{}' matches none of "
                                       "the corpus's {} documents (the first "
                                       "is '{}')",
                                       pattern, documents.size(), example));
  }
  return named;
}

struct Cluster {
  std::int64_t tokens = 0;
  bool validation = false;
};

/// Adds clusters, in an order drawn by the seed, each that brings the sum closer to the target.
void draw_clusters(std::vector<Cluster>& clusters, const SplitOptions& options) {
  const auto count = static_cast<std::int64_t>(clusters.size());
  std::int64_t total = 0, sum = 0;
  for (const Cluster& c : clusters) {
    total += c.tokens;
    if (c.validation) sum += c.tokens;
  }
  const double target = options.fraction * static_cast<double>(total);
  const Permutation order(count, options.seed, 0, "split");
  std::int64_t smallest = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    Cluster& c = clusters[static_cast<std::size_t>(order.at(i))];
    if (c.validation) continue;
    if (smallest < 0 || c.tokens < clusters[static_cast<std::size_t>(smallest)].tokens) {
      smallest = order.at(i);
    }
    const double with = static_cast<double>(sum + c.tokens) - target;
    if (std::abs(with) >= target - static_cast<double>(sum)) continue;
    c.validation = true;
    sum += c.tokens;
  }
  // All are far too large: the smallest is the closest that there is.
  if (sum == 0 && smallest >= 0) clusters[static_cast<std::size_t>(smallest)].validation = true;
}

}  // namespace

Split split_documents(const Corpus& corpus, const SplitOptions& options, TrainingSide training) {
  if (!(options.fraction >= 0.0 && options.fraction < 1.0)) {
    fail(ErrorKind::kUsage,
         fmt::format("data.validation.fraction: validation fraction {} is not in [0, 1)",
                     options.fraction));
  }
  const auto documents = corpus.documents();
  const auto named = named_documents(corpus, options.documents);
  // Clusters are numbered by their first document, so that the draw does not hang on cluster ids.
  std::map<std::int32_t, std::size_t> numbers;
  std::vector<Cluster> clusters;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const auto [at, fresh] = numbers.try_emplace(documents[i].cluster, clusters.size());
    if (fresh) clusters.emplace_back();
    Cluster& c = clusters[at->second];
    c.tokens += documents[i].token_end - documents[i].token_begin;
    c.validation = c.validation || named[i];
  }
  Split split;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    if (!named[i] && clusters[numbers.at(documents[i].cluster)].validation) ++split.moved;
  }
  if (options.fraction > 0.0) draw_clusters(clusters, options);
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const bool validation = clusters[numbers.at(documents[i].cluster)].validation;
    (validation ? split.validation : split.train).push_back(static_cast<std::int64_t>(i));
  }
  if (split.train.empty() && training == TrainingSide::kNeeded) {
    const bool drawn = options.fraction > 0.0;
    fail(ErrorKind::kData,
         fmt::format("data.validation.{}: the validation split leaves no training document ({} of "
                     "{} documents, {} of them near-duplicates that follow): {}",
                     drawn ? "fraction" : "documents", split.validation.size(), documents.size(),
                     split.moved,
                     drawn ? "lower it, or prepare a corpus of more documents" : "name fewer"));
  }
  return split;
}

}  // namespace k25::data
