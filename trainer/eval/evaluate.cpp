#include "trainer/eval/evaluate.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/stopwatch.h"
#include "optim/statistics.h"

namespace k25::trainer {
namespace {

// Per domain: nll in 2^-24 nats, tokens; then one flag for a non-finite loss.
struct Tally {
  explicit Tally(const std::vector<optim::LocalStats>& domains) : numbers(2 * domains.size() + 1) {
    for (std::size_t d = 0; d < domains.size(); ++d) {
      numbers[2 * d] = domains[d].nll_fixed;
      numbers[2 * d + 1] = domains[d].label_tokens;
      numbers.back() += domains[d].loss_finite ? 0 : 1;
    }
  }
  std::int64_t nll(std::size_t d) const { return numbers[2 * d]; }
  std::int64_t tokens(std::size_t d) const { return numbers[2 * d + 1]; }
  std::int64_t broken() const { return numbers.back(); }
  std::vector<std::int64_t> numbers;
};

void count_targets(const data::Corpus& corpus, const std::vector<std::int64_t>& documents,
                   std::vector<std::int64_t>& counts) {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> label;
  for (const std::int64_t d : documents) {
    const data::Document& document = corpus.documents()[static_cast<std::size_t>(d)];
    const auto n = static_cast<std::size_t>(document.token_end - document.token_begin);
    tokens.resize(n);
    label.resize(n);
    corpus.read(document.token_begin, document.token_end, tokens.data(), label.data());
    for (std::size_t i = 1; i < n; ++i) {  // a document's first token is nobody's target
      if (label[i] != 0) ++counts[static_cast<std::size_t>(tokens[i])];
    }
  }
}

}  // namespace

Evaluator::Evaluator(Runtime& runtime, const Config& config, Model& model,
                     parallel::ZeroStore& store, const data::Corpus& corpus,
                     const data::ValidationSet& validation)
    : runtime_(runtime),
      config_(config),
      model_(model),
      store_(store),
      corpus_(corpus),
      validation_(validation),
      upload_(model, 1, runtime.host_allocator(), runtime.allocator()),
      losses_(model.shape(), 1, runtime.host_allocator(), runtime.allocator()) {
  batch_.resize(config.train.micro_batch, config.data.sequence);
}

Footprint Evaluator::plan(const RunShape& shape) {
  return BatchUpload::plan(shape, 1) + SequenceLosses::plan(shape, 1);
}

EvalRecord Evaluator::run(std::int64_t step) {
  const Stopwatch watch;
  const std::int64_t size = config_.train.micro_batch;
  std::int64_t micro_batches = (validation_.windows() + size - 1) / size;
  if (config_.eval.batches > 0) micro_batches = std::min(micro_batches, config_.eval.batches);
  const std::int64_t ranks = runtime_.mesh().data_ranks();
  const std::int64_t rounds = (micro_batches + ranks - 1) / ranks;

  std::vector<optim::LocalStats> sums(corpus_.info().domains.size());
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::int64_t mine = round * ranks + runtime_.mesh().data_rank();
    // A rank beyond the last micro-batch loads past the end: all rows stay empty.
    validation_.load((mine < micro_batches ? mine : micro_batches + validation_.windows()) * size,
                     batch_);
    Context& context = runtime_.context();
    const BatchTensors tensors = upload_.upload(context, runtime_.mesh(), batch_);
    losses_.clear();
    losses_.add(context, model_.forward(context, store_, tensors, Model::Purpose::kEvaluate).nll_N);
    losses_.fetch(context);
    runtime_.mesh().wait(context);
    for (std::int64_t b = 0; b < size; ++b) {
      if (batch_.sample[static_cast<std::size_t>(b)] < 0) continue;
      const auto domain = static_cast<std::size_t>(batch_.domain[static_cast<std::size_t>(b)]);
      const std::int64_t t = config_.data.sequence;
      optim::add_nll(sums[domain], losses_.values()[static_cast<std::size_t>(b)]);
      const auto* labels = batch_.labels.data() + b * t;
      sums[domain].label_tokens += t - std::count(labels, labels + t, -1);
    }
  }
  Tally tally(sums);
  store_.invalidate();
  runtime_.mesh()
      .data_comm()
      .all_reduce_small({.name = "evaluation"},
                        {.integers = tally.numbers.data(),
                         .count = static_cast<std::int64_t>(tally.numbers.size())})
      .wait();

  EvalRecord record{.step = step};
  std::int64_t nll = 0;
  for (std::size_t d = 0; d < corpus_.info().domains.size(); ++d) {
    nll += tally.nll(d);
    record.tokens += tally.tokens(d);
    if (tally.tokens(d) > 0) {
      record.domain_loss.emplace_back(
          corpus_.info().domains[d],
          static_cast<double>(tally.nll(d)) * 0x1p-24 / static_cast<double>(tally.tokens(d)));
    }
  }
  if (record.tokens > 0 && tally.broken() == 0) {
    record.loss = static_cast<double>(nll) * 0x1p-24 / static_cast<double>(record.tokens);
  }
  record.seconds = watch.seconds();
  return record;
}

UnigramBaseline unigram_baseline(const data::Corpus& corpus, const data::Split& split) {
  const auto vocab = static_cast<std::size_t>(corpus.info().vocab);
  std::vector<std::int64_t> train(vocab, 1), validation(vocab, 0);
  count_targets(corpus, split.train, train);
  count_targets(corpus, split.validation, validation);
  double train_total = 0.0, total = 0.0;
  for (std::size_t v = 0; v < vocab; ++v) {
    train_total += static_cast<double>(train[v]);
    total += static_cast<double>(validation[v]);
  }
  UnigramBaseline baseline{.tokens = static_cast<std::int64_t>(total)};
  double cross_entropy = 0.0;
  for (std::size_t v = 0; v < vocab; ++v) {
    if (validation[v] == 0) continue;
    const double p = static_cast<double>(validation[v]) / total;
    baseline.entropy -= p * std::log(p);
    cross_entropy -= p * std::log(static_cast<double>(train[v]) / train_total);
  }
  if (!split.train.empty()) baseline.cross_entropy = cross_entropy;
  return baseline;
}

}  // namespace k25::trainer
