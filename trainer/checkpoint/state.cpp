#include "trainer/checkpoint/state.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/json_value.h"

namespace k25::trainer {

using Json = nlohmann::json;

namespace {

// Such as no run can have written are refused: a sum over the content proves that nothing changed
// it, not that it makes sense.
std::vector<std::int64_t> counters(const JsonValue& list) {
  std::vector<std::int64_t> values;
  for (const JsonValue& value : list.items()) values.push_back(value.integer());
  return values;
}

std::vector<double> numbers(const JsonValue& list) {
  std::vector<double> values;
  for (const JsonValue& value : list.items()) values.push_back(value.number());
  return values;
}

}  // namespace

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
                  {"tokenizer_digest", s.tokenizer_digest},
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
    const JsonValue top(j, file + ": damaged state");
    const JsonValue policy = top.at("policy"), mixture = top.at("mixture");
    const std::int64_t step = top.at("step").integer();
    TrainState s{
        .step = step,
        .label_tokens = top.at("label_tokens").integer(),
        .policy = {.updates = policy.at("updates").integer(0, step),
                   .consecutive_skips = policy.at("consecutive_skips").integer(0, step),
                   .skipped = policy.at("skipped").integer(0, step),
                   .empty = policy.at("empty").integer(0, step),
                   .beta1_product = policy.at("beta1_product").number(0.0, 1.0),
                   .beta2_product = policy.at("beta2_product").number(0.0, 1.0)},
        .mixture = {.weights = numbers(mixture.at("weights")),
                    .consumed = counters(mixture.at("consumed")),
                    .next_sample = mixture.at("next_sample").integer()},
        .best_step = top.at("best_step").integer(-1, step),
        .best_loss = top.at("best_loss").number(0.0),
        .seed = top.at("seed").any_unsigned(),
        .corpus_digest = top.at("corpus_digest").text(),
        .order_digest = top.at("order_digest").text(),
        .tokenizer_digest = top.has("tokenizer_digest") ? top.at("tokenizer_digest").text() : "",
        .config_digest = top.at("config_digest").text(),
        .init_digest = top.at("init_digest").text(),
        .slots = top.at("slots").integer(),
        .batch = top.at("batch").integer(),
        .fingerprint = top.at("fingerprint").text()};
    if (s.mixture.weights.size() != s.mixture.consumed.size()) {
      mixture.at("consumed")
          .wrong(fmt::format("one counter for each of {} weights", s.mixture.weights.size()));
    }
    return s;
  } catch (const Json::exception& error) {
    fail(ErrorKind::kCheckpoint, file + ": damaged state: " + json_reason(error));
  }
}

}  // namespace k25::trainer
