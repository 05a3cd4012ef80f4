#pragma once
// What a run is told before its first step: settings that make no sense with this model or corpus.

#include <string>
#include <vector>

#include "data/sampler/sampler.h"
#include "trainer/config/effects.h"
#include "trainer/model/model.h"

namespace k25::trainer {

/// A warning when optim.freeze leaves no parameter to train: the loop runs, and changes nothing.
void warn_of_frozen_model(const Model& model, const ParsedConfig& parsed,
                          std::vector<std::string>& warnings);

DataFacts describe_data(const data::Corpus& corpus, const data::Split& split);

}  // namespace k25::trainer
