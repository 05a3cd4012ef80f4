#include "trainer/train/start_checks.h"

namespace k25::trainer {

void warn_of_frozen_model(const Model& model, const ParsedConfig& parsed,
                          std::vector<std::string>& warnings) {
  for (const parallel::UnitSpec& unit : model.units()) {
    for (const parallel::ParameterSpec& parameter : unit.parameters) {
      if (!parameter.frozen) return;
    }
  }
  warnings.push_back("optim.freeze " + parsed.values.at("optim.freeze") +
                     ": training has no effect because every parameter is frozen (" +
                     parsed.origins.at("optim.freeze") + ")");
}

DataFacts describe_data(const data::Corpus& corpus, const data::Split& split) {
  DataFacts facts{.tokens = corpus.info().tokens};
  std::vector<std::int64_t> training(corpus.info().domains.size(), 0);
  const auto document = [&](std::int64_t d) -> const data::Document& {
    return corpus.documents()[static_cast<std::size_t>(d)];
  };
  for (const std::int64_t d : split.train) ++training[static_cast<std::size_t>(document(d).domain)];
  for (const std::int64_t d : split.validation) {
    facts.validation_tokens += document(d).token_end - document(d).token_begin;
  }
  for (std::size_t d = 0; d < training.size(); ++d) {
    if (training[d] == 0) facts.domains_without_training.push_back(corpus.info().domains[d]);
  }
  return facts;
}

}  // namespace k25::trainer
