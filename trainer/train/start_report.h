#pragma once
// What a run says of itself before its first step.

#include <string>
#include <vector>

#include "data/corpus/corpus.h"
#include "data/sampler/sampler.h"
#include "trainer/train/memory_plan.h"
#include "trainer/train/runtime.h"

namespace k25::trainer {

std::vector<std::string> start_report(Runtime& runtime, const Config& config, const Model& model,
                                      const data::Corpus& corpus, const data::Split& split,
                                      const MemoryPlan& memory, const parallel::ZeroStore& store);

}  // namespace k25::trainer
