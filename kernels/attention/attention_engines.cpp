#include "kernels/attention/attention_engines.h"

#include "kernels/core/check.h"
#include "kernels/core/entry_reader.h"

namespace k25::kernels {
namespace {

using Key = AttentionEngineKey;

struct NumberField {
  const char* name;
  std::int64_t Key::* value;
  std::int64_t least;
};
constexpr NumberField kNumbers[] = {
    {" b=", &Key::batch, 1},     {" t=", &Key::tokens, 1},   {" h=", &Key::heads, 1},
    {" kv=", &Key::kv_heads, 1}, {" e=", &Key::head_dim, 1}, {" doc=", &Key::document_stride, 0},
};

struct StridesField {
  const char* name;
  Key::Strides Key::* value;
};
constexpr StridesField kStrides[] = {
    {" q=", &Key::q},       {" k=", &Key::k},   {" v=", &Key::v},   {" out=", &Key::out},
    {" dout=", &Key::dout}, {" dq=", &Key::dq}, {" dk=", &Key::dk}, {" dv=", &Key::dv},
};

bool parse_key(EntryReader& in, Key& key) {
  if (!in.choice(key.direction, "forward", AttentionDirection::kForward, "backward",
                 AttentionDirection::kBackward)) {
    return false;
  }
  for (const NumberField& field : kNumbers) {
    std::int64_t& value = key.*field.value;
    if (!in.literal(field.name) || !in.number(value) || value < field.least) return false;
  }
  for (const StridesField& field : kStrides) {
    Key::Strides& s = key.*field.value;
    if (!in.literal(field.name) || !in.number(s[0]) || !in.literal(",") || !in.number(s[1]) ||
        !in.literal(",") || !in.number(s[2])) {
      return false;
    }
  }
  return true;
}

bool parse_engine(EntryReader& in, CudnnEngine& engine) {
  if (!in.literal(" engine=") || !in.number(engine.index) || engine.index < 0 ||
      !in.literal(" knobs=")) {
    return false;
  }
  for (bool first = true; !in.at_end(); first = false) {
    std::pair<std::int64_t, std::int64_t> knob;
    if (!first && !in.literal(",")) return false;
    if (!in.number(knob.first) || !in.literal(":") || !in.number(knob.second)) return false;
    engine.knobs.push_back(knob);
  }
  return true;
}

bool parse(const std::string& text, Key& key, AttentionEngineChoice& choice) {
  EntryReader in(text);
  if (!parse_key(in, key) || !in.literal(" cudnn=") || !in.number(choice.library)) return false;
  if (!in.literal(" own") && !parse_engine(in, choice.engine.emplace())) return false;
  return in.at_end() && attention_engine_string(key, choice) == text;
}

}  // namespace

std::string attention_engine_string(const AttentionEngineKey& key,
                                    const AttentionEngineChoice& choice) {
  std::string text = key.direction == AttentionDirection::kForward ? "forward" : "backward";
  // NOTE: pieces are appended one by one: GCC 12 warns of a char* + std::string&& (bug 105651).
  for (const NumberField& field : kNumbers) {
    text += field.name;
    text += std::to_string(key.*field.value);
  }
  for (const StridesField& field : kStrides) {
    const Key::Strides& s = key.*field.value;
    text +=
        field.name + std::to_string(s[0]) + "," + std::to_string(s[1]) + "," + std::to_string(s[2]);
  }
  text += " cudnn=" + std::to_string(choice.library);
  if (!choice.engine) return text + " own";
  text += " engine=" + std::to_string(choice.engine->index) + " knobs=";
  const char* separator = "";
  for (const auto& [type, value] : choice.engine->knobs) {
    text += separator;
    text += std::to_string(type) + ":" + std::to_string(value);
    separator = ",";
  }
  return text;
}

std::vector<std::string> AttentionEngines::to_strings() const {
  std::vector<std::string> entries;
  entries.reserve(choices_.size());
  for (const auto& [key, choice] : choices_) {
    entries.push_back(attention_engine_string(key, choice));
  }
  return entries;
}

void AttentionEngines::load(std::span<const std::string> entries) {
  load_entries(entries, "attention engine", "shape", parse, choices_);
}

}  // namespace k25::kernels
