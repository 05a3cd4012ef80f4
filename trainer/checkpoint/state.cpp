#include "trainer/checkpoint/state.h"

#include <nlohmann/json.hpp>

#include "kernels/core/check.h"

namespace k25::trainer {

using Json = nlohmann::json;

std::string to_json(const TrainState& s) {
  const Json j = {{"step", s.step},
                  {"label_tokens", s.label_tokens},
                  {"policy",
                   {{"updates", s.policy.updates},
                    {"consecutive_skips", s.policy.consecutive_skips},
                    {"skipped", s.policy.skipped},
                    {"empty", s.policy.empty},
                    {"beta1_product", s.policy.beta1_product},
                    {"beta2_product", s.policy.beta2_product}}},
                  {"mixture",
                   {{"weights", s.mixture.weights},
                    {"consumed", s.mixture.consumed},
                    {"next_sample", s.mixture.next_sample}}},
                  {"best_step", s.best_step},
                  {"best_loss", s.best_loss},
                  {"seed", s.seed},
                  {"corpus_digest", s.corpus_digest},
                  {"order_digest", s.order_digest},
                  {"config_digest", s.config_digest},
                  {"init_digest", s.init_digest},
                  {"slots", s.slots},
                  {"batch", s.batch},
                  {"fingerprint", s.fingerprint}};
  return j.dump(1);
}

TrainState state_from_json(const std::string& text, const std::string& file) {
  try {
    const Json j = Json::parse(text);
    const Json &policy = j.at("policy"), &mixture = j.at("mixture");
    return {.step = j.at("step"),
            .label_tokens = j.at("label_tokens"),
            .policy = {.updates = policy.at("updates"),
                       .consecutive_skips = policy.at("consecutive_skips"),
                       .skipped = policy.at("skipped"),
                       .empty = policy.at("empty"),
                       .beta1_product = policy.at("beta1_product"),
                       .beta2_product = policy.at("beta2_product")},
            .mixture = {.weights = mixture.at("weights"),
                        .consumed = mixture.at("consumed"),
                        .next_sample = mixture.at("next_sample")},
            .best_step = j.at("best_step"),
            .best_loss = j.at("best_loss"),
            .seed = j.at("seed"),
            .corpus_digest = j.at("corpus_digest"),
            .order_digest = j.at("order_digest"),
            .config_digest = j.at("config_digest"),
            .init_digest = j.at("init_digest"),
            .slots = j.at("slots"),
            .batch = j.at("batch"),
            .fingerprint = j.at("fingerprint")};
  } catch (const Json::exception& error) {
    fail(ErrorKind::kCheckpoint, file + ": damaged state: " + error.what());
  }
}

}  // namespace k25::trainer
