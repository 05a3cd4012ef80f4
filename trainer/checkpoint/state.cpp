#include "trainer/checkpoint/state.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "trainer/checkpoint/files.h"

namespace k25::trainer {

using Json = nlohmann::json;

namespace {

// Reads the numbers of one object. Such as no run can have written are refused: a sum over the
// content proves that nothing changed it, not that it makes sense.
struct Reader {
  const Json& object;
  const std::string& file;
  std::string prefix;  // of the key in messages

  [[noreturn]] void wrong(const std::string& key, const Json& value,
                          const std::string& expected) const {
    const std::string given = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    fail(ErrorKind::kCheckpoint, fmt::format("{}: damaged state: '{}{}' is {}, expected {}", file,
                                             prefix, key, given.substr(0, 60), expected));
  }
  std::int64_t checked(const std::string& key, const Json& value, std::int64_t low,
                       std::int64_t high) const {
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<std::uint64_t>() <= kMost) &&
                      value.get<std::int64_t>() >= low && value.get<std::int64_t>() <= high;
    if (!fits) wrong(key, value, fmt::format("an integer from {} to {}", low, high));
    return value.get<std::int64_t>();
  }
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high = kMost) const {
    return checked(key, object.at(key), low, high);
  }
  std::vector<std::int64_t> integers(const char* key) const {
    std::vector<std::int64_t> values;
    for (const Json& value : object.at(key)) {
      values.push_back(checked(fmt::format("{}[{}]", key, values.size()), value, 0, kMost));
    }
    return values;
  }
  double number(const char* key, double low, double high) const {
    const Json& value = object.at(key);
    const bool fits =
        value.is_number() && value.get<double>() >= low && value.get<double>() <= high;
    if (!fits) wrong(key, value, fmt::format("a number from {} to {}", low, high));
    return value.get<double>();
  }

  // Above it, adding one more step would not be safe.
  static constexpr std::int64_t kMost = std::int64_t{1} << 62;
};

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
    const Reader top{j, file, ""}, policy{j.at("policy"), file, "policy."},
        mixture{j.at("mixture"), file, "mixture."};
    const std::int64_t step = top.integer("step", 0);
    TrainState s{.step = step,
                 .label_tokens = top.integer("label_tokens", 0),
                 .policy = {.updates = policy.integer("updates", 0, step),
                            .consecutive_skips = policy.integer("consecutive_skips", 0, step),
                            .skipped = policy.integer("skipped", 0, step),
                            .empty = policy.integer("empty", 0, step),
                            .beta1_product = policy.number("beta1_product", 0.0, 1.0),
                            .beta2_product = policy.number("beta2_product", 0.0, 1.0)},
                 .mixture = {.weights = j.at("mixture").at("weights"),
                             .consumed = mixture.integers("consumed"),
                             .next_sample = mixture.integer("next_sample", 0)},
                 .best_step = top.integer("best_step", -1, step),
                 .best_loss = top.number("best_loss", 0.0, std::numeric_limits<double>::max()),
                 .seed = j.at("seed"),
                 .corpus_digest = j.at("corpus_digest"),
                 .order_digest = j.at("order_digest"),
                 .tokenizer_digest = j.value("tokenizer_digest", ""),
                 .config_digest = j.at("config_digest"),
                 .init_digest = j.at("init_digest"),
                 .slots = top.integer("slots", 0),
                 .batch = top.integer("batch", 0),
                 .fingerprint = j.at("fingerprint")};
    if (s.mixture.weights.size() != s.mixture.consumed.size()) {
      top.wrong("mixture.consumed", j.at("mixture").at("consumed"),
                fmt::format("one counter for each of {} weights", s.mixture.weights.size()));
    }
    return s;
  } catch (const Json::exception& error) {
    fail(ErrorKind::kCheckpoint, file + ": damaged state: " + json_reason(error));
  }
}

}  // namespace k25::trainer
