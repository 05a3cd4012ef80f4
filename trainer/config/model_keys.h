#pragma once
// The keys of the model's section. Internal to trainer/config.

#include <vector>

#include "trainer/config/schema.h"

namespace k25::trainer {

std::vector<Key> model_keys();
std::vector<Key> kda_keys();  ///< model.kda
std::vector<Key> mla_keys();  ///< model.mla
std::vector<Key> moe_keys();  ///< model.moe

}  // namespace k25::trainer
