// The progress line, its JSON, and what a resume keeps of metrics.jsonl.
#include "trainer/log/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/io/atomic_file.h"
#include "tests/data/scratch_folder.h"

namespace k25::trainer {
namespace {

using Json = nlohmann::json;

StepRecord full_record() {
  StepRecord r;
  r.step = 120, r.steps = 1000;
  r.loss = 2.34561, r.loss_max = 2.5, r.gradient_norm = 0.8312;
  r.lr = 2e-5, r.tokens_per_second = 12345.6, r.tflops = 0.123;
  r.step_ms = 50.04, r.data_ms = 1.0, r.wait_ms = 2.0, r.save_ms = 0.0, r.memory_gib = 0.5;
  r.label_tokens = 512, r.total_tokens = 5000000000;
  r.skipped = 1, r.nan = 1, r.empty = 2;
  r.domain_samples = {{"law", 3}, {"news", 5}};
  r.samples = {8, 9};
  r.epoch = 1.25, r.eta_seconds = 3725.0;
  return r;
}

TEST(TextLine, has_every_field_in_a_stable_order) {
  EXPECT_EQ(format_text(full_record()),
            "step=120/1000 loss=2.3456 loss_max=2.5000 gnorm=0.831 lr=2.0e-05 tok/s=12346 "
            "tflops=0.123 mfu=n/a "
            "step_ms=50.0 data_ms=1.0 wait_ms=2.0 save_ms=0.0 mem_gib=0.500 tokens=512 skipped=1 "
            "nan=1 empty=2 "
            "epoch=1.25 eta=1h02m");
}

TEST(JsonLine, holds_the_hardware_under_its_own_names) {
  StepRecord r = full_record();
  r.hardware = {{"hw/rss_gib", 1.5}, {"hw/gpu_power_w", std::nan("")}};
  const Json j = Json::parse(format_json(r));
  EXPECT_EQ(j.at("hw/rss_gib"), 1.5);
  EXPECT_FALSE(j.contains("hw/gpu_power_w"));
  r.hardware.clear();
  EXPECT_EQ(format_json(r).find("hw/"), std::string::npos);
}

TEST(TextLine, what_does_not_exist_is_not_a_number) {
  StepRecord r = full_record();
  r.loss.reset();
  r.loss_max = std::nan("");
  r.gradient_norm = std::numeric_limits<double>::infinity();
  const std::string line = format_text(r);
  EXPECT_NE(line.find("loss=n/a loss_max=n/a gnorm=n/a lr="), std::string::npos) << line;
  EXPECT_EQ(line.find("inf"), std::string::npos) << line;
}

TEST(TextLine, remaining_time) {
  const auto eta = [](double seconds) {
    StepRecord r = full_record();
    r.eta_seconds = seconds;
    const std::string line = format_text(r);
    return line.substr(line.find("eta=") + 4);
  };
  EXPECT_EQ(eta(0.0), "0s");
  EXPECT_EQ(eta(59.4), "59s");
  EXPECT_EQ(eta(59.5), "1m00s");
  EXPECT_EQ(eta(3599.0), "59m59s");
  EXPECT_EQ(eta(400000.0), "111h06m");
}

TEST(JsonLine, is_one_object_with_the_keys_in_order) {
  const std::string text = format_json(full_record());
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const Json j = Json::parse(text);
  EXPECT_EQ(j["step"], 120);
  EXPECT_EQ(j["loss"], 2.34561);
  EXPECT_EQ(j["total_tokens"], 5000000000);
  EXPECT_EQ(j["domain_samples"]["news"], 5);
  EXPECT_EQ(j["samples"], Json({8, 9}));
  EXPECT_FALSE(j.contains("mfu"));
  EXPECT_EQ(text.rfind("{\"step\":120,\"steps\":1000,\"loss\":", 0), 0u) << text;
}

TEST(JsonLine, never_holds_a_nan_token) {
  StepRecord r = full_record();
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  r.loss = nan, r.loss_max = inf, r.gradient_norm = -inf, r.tflops = nan;
  r.lr = nan, r.tokens_per_second = inf, r.eta_seconds = inf;
  r.domain_samples = {{"caf\xe9 \"x\"\n", 1}};  // not UTF-8: a folder may be called so
  const Json j = Json::parse(format_json(r));
  for (const char* key : {"loss", "loss_max", "gnorm", "tflops", "lr", "tok/s", "eta_s"}) {
    EXPECT_FALSE(j.contains(key)) << key;
  }
  EXPECT_EQ(j["domain_samples"].size(), 1u);
}

std::vector<Json> lines_of(const std::filesystem::path& path) {
  std::vector<Json> lines;
  std::istringstream in(data::read_file(path, ErrorKind::kData));
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

StepRecord at_step(std::int64_t step) {
  StepRecord r = full_record();
  r.step = step;
  return r;
}

const LogConfig kQuiet{.format = LogFormat::kText, .metrics = true, .tensorboard = false};

TEST(Metrics, a_resume_cuts_the_steps_that_are_trained_again) {
  const data::ScratchFolder folder;
  {
    Metrics metrics(folder.path(), kQuiet, 0);
    for (std::int64_t step = 1; step <= 7; ++step) metrics.write(at_step(step));
    metrics.write(EvalRecord{
        .step = 5, .loss = 2.0, .tokens = 9, .domain_loss = {{"law", 2.0}}, .seconds = 0.1});
    metrics.write(EvalRecord{
        .step = 7, .loss = std::nullopt, .tokens = 0, .domain_loss = {}, .seconds = 0.1});
  }
  // What a crash leaves: half a line.
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << "{\"step\": 2, \"lo";
  {
    Metrics metrics(folder.path(), kQuiet, 5);
    EXPECT_EQ(metrics.warning(), "");
    metrics.write(at_step(6));
  }
  std::vector<std::int64_t> steps;
  for (const Json& j : lines_of(folder / "metrics.jsonl")) {
    steps.push_back(j["step"].get<std::int64_t>() * (j.contains("event") ? -1 : 1));
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 3, 4, 5, -5, 6}));
}

TEST(Metrics, a_fresh_run_begins_a_new_file) {
  const data::ScratchFolder folder;
  {
    Metrics(folder.path(), kQuiet, 0).write(at_step(1));
  }
  {
    Metrics(folder.path(), kQuiet, 0).write(at_step(1));
  }
  EXPECT_EQ(lines_of(folder / "metrics.jsonl").size(), 1u);
}

TEST(Metrics, lines_that_are_no_records_do_not_survive_a_resume) {
  const data::ScratchFolder folder;
  data::write_text(folder / "metrics.jsonl",
                   "nonsense\n[1]\n{\"step\": \"x\"}\n{\"step\": 1}\n\xff\n{}\n");
  const std::string before = data::read_file(folder / "metrics.jsonl", ErrorKind::kData);
  {
    Metrics metrics(folder.path(), kQuiet, 1);
    EXPECT_NE(metrics.warning().find("metrics.jsonl:1: no line of a run; 5 such line(s)"),
              std::string::npos)
        << metrics.warning();
    EXPECT_NE(metrics.warning().find("metrics.jsonl.before-1"), std::string::npos);
  }
  EXPECT_EQ(data::read_file(folder / "metrics.jsonl", ErrorKind::kData), "{\"step\": 1}\n");
  EXPECT_EQ(data::read_file(folder / "metrics.jsonl.before-1", ErrorKind::kData), before);
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << "# mine\n{\"step\": 2, \"cut";
  Metrics again(folder.path(), kQuiet, 1);
  EXPECT_NE(again.warning().find("metrics.jsonl:2: no line of a run; 1 such line(s)"),
            std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(folder / "metrics.jsonl.before-2"));
}

TEST(Metrics, sinks_that_are_off_write_nothing) {
  const data::ScratchFolder folder;
  Metrics(folder.path(), {.format = LogFormat::kJson, .metrics = false, .tensorboard = false}, 0)
      .write(at_step(1));
  EXPECT_EQ(folder.entries(), 0);
}

TEST(Metrics, a_sink_that_cannot_be_opened_is_named) {
  const data::ScratchFolder folder;
  std::filesystem::create_directories(folder / "metrics.jsonl");
  data::expect_error(
      ErrorKind::kCheckpoint, [&] { Metrics(folder.path(), kQuiet, 0); }, "metrics.jsonl");
}

}  // namespace
}  // namespace k25::trainer
