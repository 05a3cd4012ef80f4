// The file that keeps what a run's bits depend on: format, damage, and what may be used where.
#include "trainer/train/plans.h"

#include <gtest/gtest.h>

#include "kernels/core/check.h"

namespace k25::trainer {
namespace {

constexpr const char* kAttention =
    "forward b=1 t=512 h=2 kv=1 e=64 doc=0 q=1,2,3 k=1,2,3 v=1,2,3 out=1,2,3 dout=0,0,0 dq=0,0,0 "
    "dk=0,0,0 dv=0,0,0 cudnn=91400 engine=5 knobs=0:1,7:3";

Plans h200() {
  return {.host = {.cpu_isa = "x86-64-v4",
                   .threads = 2,
                   .eigen_l1_bytes = 32768,
                   .compiler = "12.2.0 \"x\""},
          .gpu = CudaFacts{.name = "NVIDIA H200",
                           .num_sms = 132,
                           .runtime = 13000,
                           .driver = 13000,
                           .cublaslt = 130100,
                           .cudnn = 91400},
          .gemm = {"bf16->fp32 m=8 n=4 k=2 A^T B add align=16,2,4 cublaslt=130100 " +
                   std::string(128, 'a')},
          .attention = {kAttention}};
}

Plans cpu() {
  Plans plans = h200();
  plans.gpu.reset();
  plans.gemm.clear();
  plans.attention.clear();
  return plans;
}

std::string refusal(const std::string& text) {
  try {
    parse_plans(text, "RUN/plans.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
    const std::string what = error.what();
    EXPECT_NE(what.find("RUN/plans.json: "), std::string::npos) << what;
    EXPECT_NE(what.find("remove the file"), std::string::npos) << what;
    return what;
  }
  return "accepted";
}

std::string with(const Plans& plans, const std::string& from, const std::string& to) {
  std::string text = plans_json(plans);
  return text.replace(text.find(from), from.size(), to);
}

TEST(Plans, ReadsWhatItWrites) {
  for (const Plans& plans : {h200(), cpu()}) {
    const Plans again = parse_plans(plans_json(plans), "f");
    EXPECT_EQ(plans_json(again), plans_json(plans));
    EXPECT_EQ(plans_digest(again), plans_digest(plans));
    EXPECT_EQ(again.gpu.has_value(), plans.gpu.has_value());
  }
  const Plans again = parse_plans(plans_json(h200()), "f");
  EXPECT_EQ(again.host.cpu_isa, "x86-64-v4");
  EXPECT_EQ(again.host.compiler, "12.2.0 \"x\"");
  EXPECT_EQ(again.host.threads, 2);
  EXPECT_EQ(again.host.eigen_l1_bytes, 32768);
  ASSERT_TRUE(again.gpu.has_value());
  EXPECT_EQ(again.gpu->name, "NVIDIA H200");
  EXPECT_EQ(again.gpu->num_sms, 132);
  EXPECT_EQ(again.gpu->cudnn, 91400);
  EXPECT_EQ(again.gemm, h200().gemm);
  EXPECT_EQ(again.attention, h200().attention);
}

TEST(Plans, EverythingMovesTheDigest) {
  const std::string digest = plans_digest(h200());
  EXPECT_EQ(digest.size(), 64U);
  Plans other = h200();
  other.host.threads = 3;
  EXPECT_NE(plans_digest(other), digest);
  other = h200();
  other.gpu->driver = 13010;
  EXPECT_NE(plans_digest(other), digest);
  other = h200();
  other.gemm[0].back() = 'b';
  EXPECT_NE(plans_digest(other), digest);
  other = h200();
  other.attention.clear();
  EXPECT_NE(plans_digest(other), digest);
}

TEST(Plans, DamageIsNamedWithTheMend) {
  const std::string good = plans_json(h200());
  EXPECT_NE(refusal("").find("is no JSON object"), std::string::npos);
  EXPECT_NE(refusal("[]").find("is no JSON object"), std::string::npos);
  for (std::size_t n = 1; n + 2 < good.size(); n += 97) {
    EXPECT_NE(refusal(good.substr(0, n)).find("is no JSON object"), std::string::npos) << n;
  }
  EXPECT_NE(refusal(with(h200(), "k25 plans 1", "k25 plans 2"))
                .find("format: expected \"k25 plans 1\", got \"k25 plans 2\""),
            std::string::npos);
  for (const auto& [from, to] : {std::pair{"\"threads\": 2", "\"threads\": 3"},
                                 {"\"name\": \"NVIDIA H200\"", "\"name\": \"NVIDIA H100\""},
                                 {"engine=5", "engine=6"},
                                 {"\"cublaslt\": 130100", "\"cublaslt\": \"x\""},
                                 {"\"gpu\": {", "\"extra\": 1, \"gpu\": {"}}) {
    EXPECT_NE(refusal(with(h200(), from, to)).find("is damaged or was changed"), std::string::npos)
        << to;
  }
  EXPECT_NE(refusal("{\"format\": \"k25 plans 1\"}").find("the key 'sha256' is missing"),
            std::string::npos);
}

// A true sum over what no k25 can have meant.
TEST(Plans, EntriesThatNoTableTakesAreRefused) {
  Plans plans = h200();
  plans.attention[0] += "x";
  EXPECT_NE(refusal(plans_json(plans)).find("attention: stored attention engine"),
            std::string::npos);
  plans = h200();
  plans.gemm.push_back(plans.gemm[0]);
  EXPECT_NE(refusal(plans_json(plans)).find("a second one for its product"), std::string::npos);
  plans = h200();
  plans.host.threads = -1;
  EXPECT_NE(refusal(plans_json(plans)).find("host.threads: expected an integer"),
            std::string::npos);
}

TEST(Plans, KernelsAreUsedOnAnEqualGpuOnly) {
  EXPECT_EQ(plans_hindrance(h200(), h200()), "");
  EXPECT_EQ(plans_hindrance(cpu(), cpu()), "");
  EXPECT_EQ(plans_hindrance(h200(), cpu()), "gpu NVIDIA H200 -> none");
  EXPECT_EQ(plans_hindrance(cpu(), h200()), "gpu none -> NVIDIA H200");
  Plans other = h200();
  other.host.threads = 7;
  other.gpu->driver = 13020;
  EXPECT_EQ(plans_hindrance(h200(), other), "");
  other.gpu->num_sms = 114;
  other.gpu->name = "NVIDIA H100";
  other.gpu->cudnn = 91900;
  other.gpu->cublaslt = 130200;
  EXPECT_EQ(plans_hindrance(h200(), other),
            "gpu NVIDIA H200 -> NVIDIA H100, sms 132 -> 114, cublaslt 130100 -> 130200, "
            "cudnn 91400 -> 91900");
}

}  // namespace
}  // namespace k25::trainer
