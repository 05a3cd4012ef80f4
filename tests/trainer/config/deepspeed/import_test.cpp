// What becomes of a DeepSpeed config: exact values of ours, exact refusals.

#include "trainer/config/deepspeed/import.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "trainer/config/yaml_tree.h"

namespace k25::trainer {
namespace {

DeepSpeedImport import(const std::string& text) { return import_deepspeed(text, "ds.json"); }

void flatten(const YamlNode& node, const std::string& path,
             std::map<std::string, std::string>& out) {
  for (const YamlNode::Entry& entry : node.entries) {
    const std::string key = path.empty() ? entry.key : path + "." + entry.key;
    std::string value = entry.value.scalar;
    for (const YamlNode& item : entry.value.items)
      value += (value.empty() ? "" : " ") + item.scalar;
    if (entry.value.kind == YamlNode::Kind::kMap) {
      flatten(entry.value, key, out);
    } else {
      out[key] = value;
    }
  }
}

using Values = std::map<std::string, std::string>;

/// Our keys of a file without problems.
Values values_of(const std::string& text) {
  const DeepSpeedImport result = import(text);
  EXPECT_TRUE(result.problems.empty()) << ::testing::PrintToString(result.problems);
  Problems problems;
  Values values;
  flatten(parse_yaml(result.yaml, "out", problems), "", values);
  EXPECT_TRUE(problems.empty()) << result.yaml << ::testing::PrintToString(problems);
  return values;
}

/// A file with a batch and `more` behind it.
std::string with_batch(const std::string& more) {
  return "{\"train_batch_size\": 8, \"gradient_accumulation_steps\": 2" +
         (more.empty() ? more : ",\n" + more) + "}";
}

std::string only_problem(const std::string& text) {
  const DeepSpeedImport result = import(text);
  EXPECT_EQ(result.problems.size(), 1u) << text << ::testing::PrintToString(result.problems);
  EXPECT_EQ(result.yaml, "");
  return result.problems.empty() ? "" : result.problems[0];
}

/// The line of the report that tells what became of `key`.
std::string told(const DeepSpeedImport& result, const std::string& key) {
  std::istringstream lines(result.report);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(": " + key + " = ") != std::string::npos) return line;
  }
  return "";
}

TEST(DeepSpeedImport, TheRecipesOwnFile) {
  std::ifstream in(K25_GOLDEN_DIR "/recipe_ds_config.json");
  std::stringstream text;
  text << in.rdbuf();
  const Values expected = {
      {"train.batch", "1024"},       {"train.accumulation", "8"},    {"train.precision", "bf16"},
      {"optim.type", "adamw"},       {"optim.lr", "2e-05"},          {"optim.betas", "0.9 0.999"},
      {"optim.eps", "1e-08"},        {"optim.weight_decay", "0.01"}, {"zero.reshard_after", "auto"},
      {"offload.optimizer", "host"}, {"offload.params", "host"},     {"recompute", ""}};
  EXPECT_EQ(values_of(text.str()), expected);
  const DeepSpeedImport result = import(text.str());
  EXPECT_NE(result.yaml.find("\n  # layers: ...  # list the layers"), std::string::npos);
  EXPECT_NE(result.yaml.find("\n  # steps: ...  # add it\n"), std::string::npos);
  EXPECT_EQ(told(result, "fp16.enabled"),
            "# without effect  ds.json:1:191: fp16.enabled = false: it is off");
  EXPECT_EQ(told(result, "gradient_checkpointing.enabled"),
            "# mapped          ds.json:1:425: gradient_checkpointing.enabled = true -> "
            "recompute.layers, to be listed; an alias: gradient_checkpointing is no key of "
            "DeepSpeed's");
  EXPECT_EQ(std::ranges::count(result.report, '\n'), 1 + 17);
}

TEST(DeepSpeedImport, BatchTriple) {
  const auto batch = [](const std::string& text) {
    Values values = values_of("{" + text + "}");
    values.erase("train.precision");
    values.erase("optim");  // a section with a line to add
    return values;
  };
  EXPECT_EQ(batch("\"train_batch_size\": 32"),
            (Values{{"train.batch", "32"}, {"train.accumulation", "1"}}));
  EXPECT_EQ(batch("\"train_micro_batch_size_per_gpu\": 4"),
            (Values{{"train.micro_batch", "4"}, {"train.accumulation", "1"}}));
  EXPECT_EQ(batch("\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4"),
            (Values{{"train.batch", "32"}, {"train.micro_batch", "4"}}));
  const std::string all =
      "{\"train_batch_size\": 48, \"train_micro_batch_size_per_gpu\": 4,"
      "\"gradient_accumulation_steps\": 2}";
  EXPECT_NE(told(import(all), "train_batch_size").find("fits 6 data ranks alone"),
            std::string::npos);
}

TEST(DeepSpeedImport, BatchesThatDoNotMultiplyUp) {
  EXPECT_EQ(only_problem("{\"train_batch_size\": 1024, \"train_micro_batch_size_per_gpu\": 3,\n"
                         "\"gradient_accumulation_steps\": 8}"),
            "ds.json:1:2: train_batch_size: 1024 = micro-batch 3 x accumulation 8 x GPUs holds "
            "for no number of GPUs; 1008 or 1032 would fit");
  EXPECT_EQ(only_problem("{\"train_batch_size\": 4, \"gradient_accumulation_steps\": 8}"),
            "ds.json:1:2: train_batch_size: 4 = micro-batch ? x accumulation 8 x GPUs holds for "
            "no number of GPUs; 8 would fit");
  EXPECT_EQ(only_problem("{\"gradient_accumulation_steps\": 8}"),
            "ds.json: neither train_batch_size nor train_micro_batch_size_per_gpu is given; write "
            "one of them, as DeepSpeed wants it too");
  EXPECT_EQ(only_problem("{}").substr(0, 33), "ds.json: neither train_batch_size");
}

TEST(DeepSpeedImport, NumbersAreReadByTheRulesOfOurKeys) {
  const struct {
    const char *value, *problem;
  } rows[] = {
      {"0", "expected an integer in [1, 16777216], got '0'"},
      {"-4", "expected an integer in [1, 16777216], got '-4'"},
      {"1.5", "expected an integer in [1, 16777216], got '1.5'"},
      {"1e400", "expected an integer in [1, 16777216], got '1e400'"},
      {"123456789012345678901234567890",
       "expected an integer in [1, 16777216], got '123456789012345678901234567890'"},
      {"\"8\"", "expected an integer, got the quoted text '8'"},
      {"true", "expected an integer, got 'true'"},
      {"[8]", "expected an integer, got a list [8]"},
      {"\"auto\"",
       "'auto' is a placeholder that the Hugging Face Trainer fills in from its own arguments; "
       "write the value it had"},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(only_problem("{\"train_batch_size\":\n" + std::string(row.value) + "}"),
              std::string("ds.json:1:2: train_batch_size: ") + row.problem);
  }
  EXPECT_EQ(values_of("{\"train_batch_size\": 1e3}").at("train.batch"), "1000");
}

TEST(DeepSpeedImport, Optimizers) {
  const auto optimizer = [](const std::string& type, const std::string& params) {
    return with_batch("\"optimizer\": {\"type\": \"" + type + "\", \"params\": {" + params + "}}");
  };
  Values values = values_of(optimizer("AdamW", ""));
  EXPECT_EQ(values.at("optim.type"), "adamw");
  EXPECT_EQ(values.at("optim.lr"), "0.001");
  EXPECT_EQ(values.at("optim.betas"), "0.9 0.999");
  EXPECT_EQ(values.at("optim.eps"), "1e-08");
  EXPECT_EQ(values.at("optim.weight_decay"), "0");
  EXPECT_EQ(values_of(optimizer("adam", "\"torch_adam\": true")).at("optim.weight_decay"), "0.01");
  EXPECT_EQ(values_of(optimizer("Adam", "\"adam_w_mode\": false")).at("optim.type"), "adamw");
  EXPECT_EQ(only_problem(optimizer("Adam", "\"adam_w_mode\": false, \"weight_decay\": 0.1")),
            "ds.json:2:42: optimizer.params.adam_w_mode: with weight_decay 0.1 Adam adds the decay "
            "to the gradient; k25 has AdamW, which decays the weights");
  EXPECT_EQ(values_of(optimizer("AdamW", "\"adam_w_mode\": false, \"weight_decay\": 0.1"))
                .at("optim.weight_decay"),
            "0.1");
  EXPECT_EQ(only_problem(optimizer("OneBitLamb", "\"freeze_step\": 10, \"lr\": 1")),
            "ds.json:2:15: optimizer.type: k25 has no 'OneBitLamb'; it trains with "
            "AdamW (optim.type: adamw)");
  EXPECT_EQ(only_problem(optimizer("AdamW", "\"betas\": [0.9, 1.5]")),
            "ds.json:2:43: optimizer.params.betas: expected two numbers in [0, 1), such as [0.9, "
            "0.95], got a list [0.9, 1.5]");
  EXPECT_EQ(only_problem(optimizer("AdamW", "\"freeze_step\": 10")),
            "ds.json:2:43: optimizer.params.freeze_step: a parameter of another optimizer than "
            "AdamW");
  EXPECT_EQ(only_problem(with_batch("\"optimizer\": {\"params\": {\"lr\": 1}}")),
            "ds.json: optimizer.type is missing, so DeepSpeed ignores optimizer.params; write it");
  EXPECT_EQ(only_problem(with_batch("\"optimizer\": {\"type\": null, \"params\": {\"lr\": 1}}")),
            "ds.json: optimizer.type is missing, so DeepSpeed ignores optimizer.params; write it");
  EXPECT_EQ(only_problem(with_batch("\"scheduler\": {\"params\": {\"warmup_num_steps\": 3}}")),
            "ds.json: scheduler.type is missing, so DeepSpeed ignores scheduler.params; write it");
  EXPECT_EQ(only_problem(with_batch("\"optimizer\": \"AdamW\"")),
            "ds.json:2:1: optimizer: expected an object, got the quoted text 'AdamW'");
  const DeepSpeedImport none = import(with_batch(""));
  EXPECT_NE(none.yaml.find("optim:\n  # lr: ..."), std::string::npos) << none.yaml;
}

std::string scheduler(const std::string& type, const std::string& params) {
  return with_batch(
      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.5}},\n"
      "\"scheduler\": {\"type\": \"" +
      type + "\", \"params\": {" + params + "}}");
}

TEST(DeepSpeedImport, Schedules) {
  Values values = values_of(scheduler("WarmupLR", "\"warmup_type\": \"linear\""));
  EXPECT_EQ(values.at("optim.schedule.kind"), "constant");
  EXPECT_EQ(values.at("optim.schedule.warmup"), "1000");
  EXPECT_EQ(values.at("optim.lr"), "0.5");
  EXPECT_EQ(values.count("train.steps"), 0u);

  values = values_of(scheduler("WarmupDecayLR",
                               "\"warmup_type\": \"linear\", \"warmup_num_steps\": 20,"
                               "\"warmup_max_lr\": 0.25, \"total_num_steps\": 200"));
  EXPECT_EQ(values.at("optim.schedule.kind"), "wsd");
  EXPECT_EQ(values.at("optim.schedule.min_ratio"), "0");
  EXPECT_EQ(values.at("optim.schedule.decay"), "180");
  EXPECT_EQ(values.at("train.steps"), "200");
  EXPECT_EQ(values.at("optim.lr"), "0.25");

  values = values_of(scheduler("WarmupCosineLR",
                               "\"warmup_type\": \"linear\", \"warmup_num_steps\": 20,"
                               "\"total_num_steps\": 200"));
  EXPECT_EQ(values.at("optim.schedule.kind"), "cosine");
  EXPECT_EQ(values.at("optim.schedule.min_ratio"), "0.0001");
  EXPECT_EQ(values.at("train.steps"), "200");
  EXPECT_EQ(values.at("optim.lr"), "0.5");

  values =
      values_of(scheduler("WarmupDecayLR", "\"warmup_num_steps\": 0, \"total_num_steps\": 10"));
  EXPECT_EQ(values.at("optim.lr"), "0.001") << "DeepSpeed's default of warmup_max_lr wins";
}

TEST(DeepSpeedImport, SchedulesThatAreRefused) {
  EXPECT_EQ(only_problem(scheduler("WarmupLR", "\"warmup_num_steps\": 5")),
            "ds.json:3:15: scheduler.type: warmup_type is not given and DeepSpeed's default is "
            "log; k25's warm-up is linear: write \"warmup_type\": \"linear\" into "
            "scheduler.params to take it");
  EXPECT_EQ(only_problem(scheduler("WarmupLR", "\"warmup_type\": \"log\"")),
            "ds.json:3:46: scheduler.params.warmup_type: k25's warm-up is linear, not "
            "'log'; write linear to take it");
  EXPECT_EQ(only_problem(scheduler("WarmupLR",
                                   "\"warmup_type\": \"linear\", "
                                   "\"warmup_min_lr\": 1e-6")),
            "ds.json:3:71: scheduler.params.warmup_min_lr: k25's warm-up begins at 0");
  EXPECT_EQ(only_problem(scheduler("WarmupLR", "\"total_num_steps\": 5")),
            "ds.json:3:46: scheduler.params.total_num_steps: is no parameter of WarmupLR");
  EXPECT_EQ(only_problem(scheduler("WarmupCosineLR", "\"warmup_type\": \"linear\"")),
            "ds.json:3:15: scheduler.type: WarmupCosineLR needs params.total_num_steps");
  EXPECT_EQ(only_problem(scheduler("WarmupDecayLR",
                                   "\"warmup_type\": \"linear\", \"total_num_steps\": 1000")),
            "ds.json:3:76: scheduler.params.total_num_steps: 1000 steps leave none to decay after "
            "a warm-up of 1000");
  EXPECT_EQ(only_problem(scheduler("OneCycle", "\"cycle_min_lr\": 1")),
            "ds.json:3:15: scheduler.type: k25 has no 'OneCycle'; it has constant, cosine and wsd "
            "after a linear warm-up (optim.schedule.kind)");
}

TEST(DeepSpeedImport, Precision) {
  EXPECT_EQ(values_of(with_batch("")).at("train.precision"), "fp32");
  EXPECT_EQ(values_of(with_batch("\"bfloat16\": {\"enabled\": true}")).at("train.precision"),
            "bf16");
  EXPECT_EQ(values_of(with_batch("\"bf16\": {\"enabled\": false}")).at("train.precision"), "fp32");
  const DeepSpeedImport half =
      import(with_batch("\"fp16\": {\"enabled\": true, \"loss_scale\": 0}"));
  ASSERT_EQ(half.problems.size(), 1u);
  EXPECT_EQ(half.problems[0], "ds.json:2:10: fp16.enabled: fp16 needs loss scaling; use bf16");
  EXPECT_EQ(told(half, "fp16.loss_scale"),
            "# refused         ds.json:2:27: fp16.loss_scale = 0: with fp16.enabled");
  EXPECT_EQ(told(import(with_batch("\"fp16\": {\"loss_scale\": 0}")), "fp16.loss_scale"),
            "# without effect  ds.json:2:10: fp16.loss_scale = 0: of fp16 training, which is off");
  EXPECT_EQ(values_of(with_batch("\"gradient_clipping\": 1.5")).at("optim.clip"), "1.5");
}

TEST(DeepSpeedImport, ZeroAndOffload) {
  const auto zero = [](const std::string& text) {
    return with_batch("\"zero_optimization\": {" + text + "}");
  };
  for (const auto& [stage, reshard] :
       {std::pair{"0", "step"}, {"1", "step"}, {"2", "step"}, {"3", "auto"}}) {
    EXPECT_EQ(values_of(zero("\"stage\": " + std::string(stage))).at("zero.reshard_after"),
              reshard);
  }
  EXPECT_EQ(only_problem(zero("\"stage\": 4")),
            "ds.json:2:23: zero_optimization.stage: expected an integer in [0, 3], got '4'");
  Values values =
      values_of(zero("\"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.9},"
                     "\"offload_param\": {\"device\": \"none\"}"));
  EXPECT_EQ(values.at("offload.optimizer"), "host");
  EXPECT_EQ(values.at("offload.resident"), "0.1");
  EXPECT_EQ(values.at("offload.params"), "device");
  EXPECT_EQ(values_of(zero("\"cpu_offload\": true")).at("offload.optimizer"), "host");
  EXPECT_EQ(only_problem(zero("\"offload_param\": {\"device\": \"nvme\"}")),
            "ds.json:2:41: zero_optimization.offload_param.device: k25 offloads to host memory, "
            "not to NVMe; write cpu");
  values =
      values_of(zero("\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/scratch\"}"));
  EXPECT_EQ(values.at("offload.optimizer"), "host");
  EXPECT_EQ(values.at("offload.nvme"), "/scratch");
  EXPECT_EQ(only_problem(zero("\"offload_optimizer\": {\"device\": \"nvme\"}")),
            "ds.json:2:45: zero_optimization.offload_optimizer.device: nvme needs nvme_path, the "
            "folder on the disk");
  values =
      values_of(zero("\"offload_optimizer\": {\"device\": \"cpu\", \"nvme_path\": \"/scratch\"}"));
  EXPECT_EQ(values.count("offload.nvme"), 0);
  EXPECT_EQ(only_problem(zero("\"zero_hpz_partition_size\": 8")),
            "ds.json:2:23: zero_optimization.zero_hpz_partition_size: ZeRO++: k25 keeps no second "
            "copy of the parameters within a node");
  values_of(
      zero("\"zero_hpz_partition_size\": 1, \"reduce_bucket_size\": 5e8, "
           "\"stage3_prefetch_bucket_size\": \"auto\", \"mics_shard_size\": -1"));
  EXPECT_EQ(only_problem(with_batch("\"zero_optimization\": true")),
            "ds.json:2:1: zero_optimization: expected an object, got 'true'");
}

TEST(DeepSpeedImport, FeaturesThatAreOffHaveNoEffect) {
  const char* const sections[] = {
      "\"pipeline\": {}",
      "\"autotuning\": {\"enabled\": false, \"fast\": true}",
      "\"curriculum_learning\": {\"enabled\": false, \"min_difficulty\": 8}",
      "\"data_efficiency\": {\"data_sampling\": {\"curriculum_learning\": {\"curriculum_metrics\": "
      "{\"mine\": {\"schedule_config\": {\"root_degree\": 2}}}}}}",
      "\"compression_training\": {\"row_pruning\": {\"shared_parameters\": {\"enabled\": false},"
      "\"different_groups\": {\"a.b\": {\"params\": {\"dense_ratio\": 0.5}}}}}",
      "\"amp\": {\"enabled\": false, \"opt_level\": \"O1\"}",
      "\"wandb\": {\"enabled\": true}",
      "\"scheduler\": null",
      "\"elasticity\": {\"enabled\": false}"};
  for (const char* section : sections) {
    const DeepSpeedImport result = import(with_batch(section));
    EXPECT_TRUE(result.problems.empty()) << ::testing::PrintToString(result.problems);
    EXPECT_NE(result.report.find("# without effect  ds.json:2:"), std::string::npos);
  }
}

TEST(DeepSpeedImport, FeaturesThatAreOnAreRefusedOnce) {
  const std::pair<const char*, const char*> rows[] = {
      {"\"pipeline\": {\"stages\": 2}", "ds.json:2:1: pipeline: k25 has no pipeline parallelism"},
      {"\"sparse_attention\": {\"mode\": \"fixed\", \"block\": 16}",
       "ds.json:2:1: sparse_attention: k25's attention is dense"},
      {"\"amp\": {\"enabled\": true, \"opt_level\": \"O1\"}",
       "ds.json:2:9: amp.enabled: Apex AMP is PyTorch's; use bf16"},
      {"\"tensor_parallel\": {\"autotp_size\": 4}",
       "ds.json:2:21: tensor_parallel.autotp_size: k25 has no tensor parallelism; ZeRO shards "
       "every matrix"},
      {"\"checkpoint\": {\"load_universal\": true}",
       "ds.json:2:16: checkpoint.load_universal: k25 reads its own checkpoints alone; they load at "
       "any number of ranks"}};
  for (const auto& [section, problem] : rows) {
    EXPECT_EQ(only_problem(with_batch(section)), problem);
  }
}

TEST(DeepSpeedImport, UnknownKeysNameTheNearestAndThePlace) {
  const Problems problems =
      import(
          "{\"train_batch_siz\": 8, \"stage\": 3,\n"
          " \"zero_optimization\": {\"stagee\": 3},\n"
          " \"zero_optimization.stage\": 3, \"qqqqqqqq\": {\"a\": 1}, \"train_batch_size\": 8}")
          .problems;
  const Problems expected = {
      "ds.json:1:2: train_batch_siz: unknown key (did you mean 'train_batch_size'?)",
      "ds.json:1:24: stage: unknown key here (is it 'zero_optimization.stage'?)",
      "ds.json:2:24: zero_optimization.stagee: unknown key (did you mean 'stage'?)",
      "ds.json:3:2: \"zero_optimization.stage\": unknown key (did you mean 'zero_optimization'?)",
      "ds.json:3:32: qqqqqqqq: unknown key (see 'k25 config --ds-keys' for all keys)"};
  EXPECT_EQ(problems, expected);
}

TEST(DeepSpeedImport, UnknownWaysToCompress) {
  EXPECT_EQ(only_problem(with_batch("\"compression_training\": {\"row_prunning\": {}}")),
            "ds.json:2:26: compression_training.row_prunning: unknown key (did you mean "
            "'row_pruning'?)");
  EXPECT_EQ(
      only_problem(with_batch("\"compression_training\": {\"head_pruning\": "
                              "{\"shared_parameters\": {\"enabled\": true, \"num_heads\": 4}}}")),
      "ds.json:2:65: compression_training.head_pruning.shared_parameters.enabled: k25 trains whole "
      "models; compression is not built");
}

TEST(DeepSpeedImport, EveryKeyOfTheFileIsToldOnce) {
  const DeepSpeedImport result = import(with_batch(
      "\"optimizer\": {\"type\": \"Lamb\", \"params\": {\"lr\": 1, \"max_coeff\": 2}},\n"
      "\"zero_optimization\": {\"stage\": 3, \"overlap_comm\": true}, \"steps_per_print\": 10"));
  EXPECT_EQ(std::ranges::count(result.report, '\n'), 1 + 8) << result.report;
  EXPECT_EQ(told(result, "optimizer.params.lr"),
            "# refused         ds.json:2:42: optimizer.params.lr = 1: with optimizer.type");
  EXPECT_EQ(told(result, "train_batch_size"),
            "# mapped          ds.json:1:2: train_batch_size = 8 -> train.batch: 8");
}

}  // namespace
}  // namespace k25::trainer
