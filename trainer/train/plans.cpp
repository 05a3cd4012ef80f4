#include "trainer/train/plans.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "data/io/block_digest.h"
#include "kernels/attention/attention_engines.h"
#include "kernels/core/check.h"
#include "kernels/gemm/gemm_algorithms.h"
#include "trainer/config/printable.h"

namespace k25::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "k25 plans 1";

Json content_of(const Plans& plans) {
  Json json = {{"format", kFormat},
               {"host",
                {{"cpu_isa", plans.host.cpu_isa},
                 {"threads", plans.host.threads},
                 {"eigen_l1_bytes", plans.host.eigen_l1_bytes},
                 {"compiler", plans.host.compiler}}},
               {"gpu", nullptr},
               {"gemm", plans.gemm},
               {"attention", plans.attention}};
  if (plans.gpu) {
    json["gpu"] = {{"name", plans.gpu->name},         {"sms", plans.gpu->num_sms},
                   {"cuda", plans.gpu->runtime},      {"driver", plans.gpu->driver},
                   {"cublaslt", plans.gpu->cublaslt}, {"cudnn", plans.gpu->cudnn}};
  }
  return json;
}

std::string shown(const Json& value) {
  return printable_start(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

class Reader {
 public:
  Reader(std::string file, const Json& json) : file_(std::move(file)), json_(json) {}

  Plans read() const {
    if (!json_.is_object()) refuse("is no JSON object");
    if (at(json_, "", "format") != kFormat) bad("format", json_["format"], quoted(kFormat));
    check_sum();
    Plans plans;
    const Json& host = object("host");
    plans.host = {.cpu_isa = text(host, "host.", "cpu_isa"),
                  .threads = integer(host, "host.", "threads"),
                  .eigen_l1_bytes = integer(host, "host.", "eigen_l1_bytes"),
                  .compiler = text(host, "host.", "compiler")};
    if (!at(json_, "", "gpu").is_null()) {
      const Json& gpu = object("gpu");
      plans.gpu = CudaFacts{.name = text(gpu, "gpu.", "name"),
                            .num_sms = static_cast<int>(integer(gpu, "gpu.", "sms")),
                            .runtime = integer(gpu, "gpu.", "cuda"),
                            .driver = integer(gpu, "gpu.", "driver"),
                            .cublaslt = integer(gpu, "gpu.", "cublaslt"),
                            .cudnn = integer(gpu, "gpu.", "cudnn")};
    }
    plans.gemm = texts("gemm");
    plans.attention = texts("attention");
    require_loadable<kernels::GemmAlgorithms>("gemm", plans.gemm);
    require_loadable<kernels::AttentionEngines>("attention", plans.attention);
    return plans;
  }

 private:
  static std::string quoted(const std::string& word) { return "\"" + word + "\""; }
  [[noreturn]] void refuse(const std::string& what) const {
    fail(
        ErrorKind::kCheckpoint,
        fmt::format("{}: {}; remove the file, and the kernels are chosen anew (the bits may differ "
                    "from here on)",
                    file_, what));
  }
  [[noreturn]] void bad(const std::string& key, const Json& value,
                        const std::string& expected) const {
    refuse(fmt::format("{}: expected {}, got {}", key, expected, shown(value)));
  }
  const Json& at(const Json& from, const std::string& prefix, const std::string& key) const {
    const auto found = from.find(key);
    if (found == from.end()) refuse("the key '" + prefix + key + "' is missing");
    return *found;
  }
  const Json& object(const std::string& key) const {
    const Json& value = at(json_, "", key);
    if (!value.is_object()) bad(key, value, "an object");
    return value;
  }
  std::string text(const Json& from, const std::string& prefix, const std::string& key) const {
    const Json& value = at(from, prefix, key);
    if (!value.is_string()) bad(prefix + key, value, "a text");
    return value;
  }
  std::int64_t integer(const Json& from, const std::string& prefix, const std::string& key) const {
    const Json& value = at(from, prefix, key);
    if (!value.is_number_integer() || value < 0 || value > INT32_MAX) {
      bad(prefix + key, value, "an integer from 0 to 2^31 - 1");
    }
    return value;
  }
  std::vector<std::string> texts(const std::string& key) const {
    const Json& value = at(json_, "", key);
    if (!value.is_array()) bad(key, value, "a list of texts");
    for (const Json& entry : value) {
      if (!entry.is_string()) bad(key, entry, "a text in the list");
    }
    return value;
  }
  template <class Table>
  void require_loadable(const std::string& key, const std::vector<std::string>& entries) const {
    try {
      Table().load(entries);
    } catch (const Error& error) {
      refuse(key + ": " + printable(error.what()));
    }
  }
  /// Of the content as it was written, so that a changed byte anywhere is found.
  void check_sum() const {
    const Json& told = at(json_, "", "sha256");
    Json content = json_;
    content.erase("sha256");
    const std::string sum =
        data::sha256_hex(content.dump(-1, ' ', false, Json::error_handler_t::replace));
    if (told != sum) {
      refuse(fmt::format("is damaged or was changed (sha256 of its content {}, expected {})", sum,
                         shown(told)));
    }
  }

  std::string file_;
  const Json& json_;
};

}  // namespace

std::string plans_digest(const Plans& plans) { return data::sha256_hex(content_of(plans).dump()); }

std::string plans_json(const Plans& plans) {
  Json json = content_of(plans);
  json["sha256"] = plans_digest(plans);
  return json.dump(2) + "\n";
}

Plans parse_plans(const std::string& text, const std::string& file) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception&) {
    json = nullptr;  // the reader says so
  }
  return Reader(printable(file), json).read();
}

std::string plans_hindrance(const Plans& was, const Plans& now) {
  const auto name = [](const Plans& plans) { return plans.gpu ? plans.gpu->name : "none"; };
  std::string text;
  const auto compare = [&](const char* what, const auto& before, const auto& after) {
    if (before == after) return;
    text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", what, before, after);
  };
  compare("gpu", name(was), name(now));
  if (!was.gpu || !now.gpu) return text;
  compare("sms", was.gpu->num_sms, now.gpu->num_sms);
  compare("cublaslt", was.gpu->cublaslt, now.gpu->cublaslt);
  compare("cudnn", was.gpu->cudnn, now.gpu->cudnn);
  return text;
}

}  // namespace k25::trainer
