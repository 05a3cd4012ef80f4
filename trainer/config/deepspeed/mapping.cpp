#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "trainer/config/deepspeed/importer.h"
#include "trainer/config/printable.h"
#include "trainer/config/read_values.h"

namespace k25::trainer {
namespace {

constexpr const char* kDefault = "DeepSpeed's default";

std::int64_t number_of(const std::string& canonical) {
  return canonical.empty() ? 0 : std::atoll(canonical.c_str());
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Without the noise that 1 - 0.9 has in its last digits.
std::string short_number(double value) { return fmt::format("{:.12g}", value); }

// batch = micro_batch x accumulation x GPUs must have a whole number of GPUs.
void check_batch(DsImporter& in) {
  const std::int64_t batch = number_of(in.made("train.batch"));
  const std::int64_t micro = number_of(in.made("train.micro_batch"));
  const std::int64_t accumulation = number_of(in.made("train.accumulation"));
  const std::int64_t known =
      std::max<std::int64_t>(micro, 1) * std::max<std::int64_t>(accumulation, 1);
  if (batch == 0 || known == 1) return;
  if (batch % known != 0) {
    const std::int64_t below = batch / known * known;
    return in.refuse(
        "train_batch_size",
        fmt::format(
            "{} = micro-batch {} x accumulation {} x GPUs holds for no number of GPUs; {}{} "
            "would fit",
            batch, micro == 0 ? "?" : std::to_string(micro),
            accumulation == 0 ? "?" : std::to_string(accumulation),
            below > 0 ? fmt::format("{} or ", below) : "", below + known));
  }
  if (micro != 0 && accumulation != 0 && in.value("gradient_accumulation_steps") != nullptr) {
    in.mapped("train_batch_size",
              fmt::format("train.batch: {}, which with the two others fits {} data ranks alone",
                          batch, batch / known));
  }
}

void map_batch(DsImporter& in) {
  in.copy("train_batch_size", "train.batch");
  in.copy("train_micro_batch_size_per_gpu", "train.micro_batch");
  in.copy("gradient_accumulation_steps", "train.accumulation");
  const bool batch = in.has("train_batch_size"), micro = in.has("train_micro_batch_size_per_gpu");
  if (!batch && !micro) {
    in.refuse_file(
        "neither train_batch_size nor train_micro_batch_size_per_gpu is given; write one of them, "
        "as DeepSpeed wants it too");
  }
  if (batch != micro && !in.has("gradient_accumulation_steps")) {
    in.set("train.accumulation", "1", "", kDefault);
  }
  check_batch(in);
}

// Adam without adam_w_mode adds the decay to the gradient.
bool refuse_l2(DsImporter& in) {
  const bool adam = lower(in.value("optimizer.type")->scalar) == "adam";
  if (!adam || in.flag("optimizer.params.adam_w_mode", true)) return false;
  const std::string decay = in.made("optim.weight_decay");
  if (decay == "0") return false;
  in.refuse("optimizer.params.adam_w_mode",
            fmt::format("with weight_decay {} Adam adds the decay to the gradient; k25 has AdamW, "
                        "which decays the weights",
                        decay.empty() ? "?" : decay));
  return true;
}

void map_optimizer_params(DsImporter& in) {
  const bool torch_adam = in.flag("optimizer.params.torch_adam", false);
  const bool decoupled = lower(in.value("optimizer.type")->scalar) == "adamw" ||
                         in.flag("optimizer.params.adam_w_mode", true);
  const struct {
    const char *name, *key, *fallback;
  } params[] = {{"lr", "optim.lr", "0.001"},
                {"betas", "optim.betas", "[0.9, 0.999]"},
                {"eps", "optim.eps", "1e-08"},
                {"weight_decay", "optim.weight_decay", torch_adam && decoupled ? "0.01" : "0"}};
  for (const auto& param : params) {
    const std::string path = std::string("optimizer.params.") + param.name;
    if (!in.copy(path, param.key) && !in.has(path)) in.set(param.key, param.fallback, "", kDefault);
  }
  if (in.value("optimizer.params.weight_decay") != nullptr &&
      in.made("optim.weight_decay") != "0") {
    in.set("optim.weight_decay", in.made("optim.weight_decay"), "optimizer.params.weight_decay",
           "of matrices only");
  }
}

void map_optimizer(DsImporter& in) {
  const YamlNode* type = in.value("optimizer.type");
  if (type == nullptr) {
    if (in.has_section("optimizer.params") && !in.has("optimizer.type")) {
      in.refuse_file("optimizer.type is missing, so DeepSpeed ignores optimizer.params; write it");
    }
    return;
  }
  if (!is_known_optimizer(*type)) {
    return in.refuse("optimizer.type", "k25 has no '" + printable_start(type->scalar) +
                                           "'; it trains with AdamW (optim.type: adamw)");
  }
  map_optimizer_params(in);
  if (refuse_l2(in)) return;
  in.set("optim.type", "adamw", "optimizer.type");
  if (in.value("optimizer.params.adam_w_mode") != nullptr) {
    in.mapped("optimizer.params.adam_w_mode", "optim.type: adamw");
  }
  if (in.value("optimizer.params.torch_adam") != nullptr) {
    in.mapped("optimizer.params.torch_adam",
              "optim.weight_decay: " + in.made("optim.weight_decay"));
  }
}

bool refuse_foreign_params(DsImporter& in, const std::string& type) {
  bool refused = false;
  const auto only = [&](const char* name, bool fits) {
    const std::string path = std::string("scheduler.params.") + name;
    if (fits || in.value(path) == nullptr) return;
    in.refuse(path, "is no parameter of " + type);
    refused = true;
  };
  only("warmup_max_lr", type != "WarmupCosineLR");
  only("total_num_steps", type != "WarmupLR");
  only("cos_min_ratio", type == "WarmupCosineLR");
  return refused;
}

void map_warmup(DsImporter& in) {
  const std::string steps = "scheduler.params.warmup_num_steps";
  if (!in.copy(steps, "optim.schedule.warmup") && !in.has(steps)) {
    in.set("optim.schedule.warmup", "1000", "", kDefault);
  }
  const std::string type = "scheduler.params.warmup_type";
  if (const YamlNode* ramp = in.value(type); ramp != nullptr) {
    if (ramp->scalar != "linear") {
      in.refuse(type, "k25's warm-up is linear, not '" + printable_start(ramp->scalar) +
                          "'; write linear to take it");
    } else {
      in.mapped(type, "optim.schedule.warmup, which is linear");
    }
  } else if (!in.has(type) && in.made("optim.schedule.warmup") != "0") {
    in.refuse("scheduler.type",
              "warmup_type is not given and DeepSpeed's default is log; k25's warm-up is linear: "
              "write \"warmup_type\": \"linear\" into scheduler.params to take it");
  }
}

// The peak of the schedule wins over the optimizer's rate.
void map_peak(DsImporter& in, const std::string& type) {
  const std::string path = "scheduler.params.warmup_max_lr";
  const std::string before = in.made("optim.lr");
  if (in.copy(path, "optim.lr")) {
    if (!before.empty() && before != in.made("optim.lr") && in.value("optimizer.params.lr")) {
      in.no_effect("optimizer.params.lr", "the peak of the schedule wins: " + path);
    }
  } else if (type == "WarmupDecayLR" && !in.has(path)) {
    in.set("optim.lr", "0.001", "", "DeepSpeed's default of warmup_max_lr");
    if (in.value("optimizer.params.lr") != nullptr) {
      in.no_effect("optimizer.params.lr",
                   "the peak of the schedule wins: warmup_max_lr, by default 0.001");
    }
  }
}

void map_decay(DsImporter& in, const std::string& type) {
  const std::string total = "scheduler.params.total_num_steps";
  if (!in.copy(total, "train.steps")) {
    if (!in.has(total)) in.refuse("scheduler.type", type + " needs params.total_num_steps");
    return;
  }
  const std::int64_t steps = number_of(in.made("train.steps"));
  const std::int64_t warmup = number_of(in.made("optim.schedule.warmup"));
  if (steps <= warmup) {
    return in.refuse(
        total, fmt::format("{} steps leave none to decay after a warm-up of {}", steps, warmup));
  }
  if (type == "WarmupDecayLR") {
    in.set("optim.schedule.min_ratio", "0", "", "WarmupDecayLR ends at 0");
    in.set("optim.schedule.decay", std::to_string(steps - warmup), "",
           "total_num_steps - warmup_num_steps");
  } else if (!in.copy("scheduler.params.cos_min_ratio", "optim.schedule.min_ratio") &&
             !in.has("scheduler.params.cos_min_ratio")) {
    in.set("optim.schedule.min_ratio", "0.0001", "", kDefault);
  }
}

void map_scheduler(DsImporter& in) {
  const YamlNode* node = in.value("scheduler.type");
  if (node == nullptr) {
    if (in.has_section("scheduler.params") && !in.has("scheduler.type")) {
      in.refuse_file("scheduler.type is missing, so DeepSpeed ignores scheduler.params; write it");
    }
    return;
  }
  if (!is_known_scheduler(*node)) {
    return in.refuse("scheduler.type", "k25 has no '" + printable_start(node->scalar) +
                                           "'; it has constant, cosine and wsd after a linear "
                                           "warm-up (optim.schedule.kind)");
  }
  const std::string type = node->scalar;
  in.set("optim.schedule.kind",
         type == "WarmupLR" ? "constant" : (type == "WarmupDecayLR" ? "wsd" : "cosine"),
         "scheduler.type");
  if (refuse_foreign_params(in, type)) return;
  map_warmup(in);
  map_peak(in, type);
  if (type != "WarmupLR") map_decay(in, type);
}

void map_precision(DsImporter& in) {
  const bool old = in.has("bfloat16.enabled");
  const std::string path = old && !in.has("bf16.enabled") ? "bfloat16.enabled" : "bf16.enabled";
  if (old && path == "bf16.enabled" && in.value("bfloat16.enabled") != nullptr) {
    in.no_effect("bfloat16.enabled", "bf16.enabled wins, as in DeepSpeed");
  }
  if (in.value(path) != nullptr) {
    in.set("train.precision", in.flag(path, false) ? "bf16" : "fp32", path);
  } else if (!in.has(path)) {
    in.set("train.precision", "fp32", "", kDefault);
  }
  in.copy("gradient_clipping", "optim.clip");
}

void map_zero(DsImporter& in) {
  const YamlNode* stage = in.value("zero_optimization.stage");
  if (stage == nullptr) return;
  std::int64_t number = 0;
  const std::string expected = read_integer(*stage, 0, 3, number);
  if (!expected.empty()) {
    return in.refuse("zero_optimization.stage", "expected " + expected + ", got " + given(*stage));
  }
  in.set("zero.reshard_after", number == 3 ? "auto" : "step", "zero_optimization.stage",
         number == 3 ? "" : "optimizer state and gradients stay sharded");
}

void map_nvme(DsImporter& in, const std::string& device, const std::string& folder) {
  if (!in.has(folder)) return in.refuse(device, "nvme needs nvme_path, the folder on the disk");
  in.set("offload.optimizer", "host", device, "the moments go to the disk, the masters do not");
  in.copy(folder, "offload.nvme");
}

// Where a device or an old flag puts the state; `old` names the flags.
void map_device(DsImporter& in, const std::string& section, const std::string& key,
                const std::vector<std::string>& old) {
  const std::string path = "zero_optimization." + section + ".device";
  for (const std::string& name : old) {
    const std::string flag = "zero_optimization." + name;
    if (in.value(flag) == nullptr) continue;
    if (in.has(path)) {
      in.no_effect(flag, section + ".device wins");
    } else {
      in.set(key, in.flag(flag, false) ? "host" : "device", flag);
    }
  }
  const YamlNode* device = in.value(path);
  if (device == nullptr) return;
  if (device->scalar == "none" || device->scalar == "cpu") {
    in.set(key, device->scalar == "cpu" ? "host" : "device", path);
  } else if (device->scalar == "nvme" && key == "offload.optimizer") {
    map_nvme(in, path, "zero_optimization." + section + ".nvme_path");
  } else if (device->scalar == "nvme") {
    in.refuse(path, "k25 offloads to host memory, not to NVMe; write cpu");
  } else {
    in.refuse(path, "expected none, cpu or nvme, got " + given(*device));
  }
}

void map_offload(DsImporter& in) {
  map_device(in, "offload_optimizer", "offload.optimizer", {"cpu_offload"});
  const std::string folder = "zero_optimization.offload_optimizer.nvme_path";
  if (in.value(folder) != nullptr && in.made("offload.nvme").empty()) {
    in.no_effect(folder, "the optimizer is not on NVMe");
  }
  map_device(in, "offload_param", "offload.params", {"cpu_offload_param", "cpu_offload_params"});
  const std::string path = "zero_optimization.offload_optimizer.ratio";
  const YamlNode* ratio = in.value(path);
  if (ratio == nullptr) return;
  double share = 0.0;
  const std::string expected = read_number(*ratio, {0.0, 1.0}, share);
  if (!expected.empty()) {
    in.refuse(path, "expected " + expected + ", got " + given(*ratio));
  } else if (in.made("offload.optimizer") == "host") {
    in.set("offload.resident", short_number(1.0 - share), path);
  } else {
    in.no_effect(path, "the optimizer is not offloaded");
  }
}

void map_recompute_and_log(DsImporter& in) {
  const std::string path = "gradient_checkpointing.enabled";
  if (in.value(path) != nullptr) {
    const std::string alias = "an alias: gradient_checkpointing is no key of DeepSpeed's";
    if (in.flag(path, false)) {
      in.mapped(path, "recompute.layers, to be listed; " + alias);
      in.ask("recompute.layers",
             "list the layers, such as [7, 8, 9]; " + path + " does not say which");
    } else {
      in.set("recompute.layers", "[]", path, alias);
    }
  }
  in.copy("tensorboard.enabled", "log.tensorboard");
}

}  // namespace

bool is_known_optimizer(const YamlNode& type) {
  const std::string name = lower(type.scalar);
  return name == "adam" || name == "adamw";
}

bool is_known_scheduler(const YamlNode& type) {
  return type.scalar == "WarmupLR" || type.scalar == "WarmupDecayLR" ||
         type.scalar == "WarmupCosineLR";
}

void map_deepspeed(DsImporter& in) {
  map_batch(in);
  map_optimizer(in);
  map_scheduler(in);
  map_precision(in);
  map_zero(in);
  map_offload(in);
  map_recompute_and_log(in);
  if (in.made("train.steps").empty()) in.ask("train.steps", "add it");
  if (in.made("optim.lr").empty()) in.ask("optim.lr", "add it: the file has no optimizer");
}

}  // namespace k25::trainer
