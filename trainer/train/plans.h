#pragma once
// What a step's bits depend on beside checkpoint, config and data: the host, the GPU, and the
// kernels that the libraries chose on it. RUN/plans.json keeps it, so that a resumed run computes
// with the same kernels.
//
// The file is one JSON object: format "k25 plans 1", host, gpu (null on the CPU), the lists gemm
// and attention as their tables write them (kernels/gemm/gemm_algorithms.h,
// kernels/attention/attention_engines.h), and sha256 over all of it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/device.h"

namespace k25::trainer {

struct HostPlan {
  std::string cpu_isa;  ///< "x86-64-v4"
  std::int64_t threads = 1;
  std::int64_t eigen_l1_bytes = 0;  ///< as set, not as found
  std::string compiler;
};

struct Plans {
  HostPlan host;
  std::optional<CudaFacts> gpu;
  std::vector<std::string> gemm, attention;
};

std::string plans_json(const Plans& plans);
/// The file's sha256.
std::string plans_digest(const Plans& plans);
/// Throws kCheckpoint naming `file`, what is wrong (the key and its value) and the mend.
Plans parse_plans(const std::string& text, const std::string& file);

/// What keeps the kernels chosen in `was` from being used on `now`'s GPU: "gpu NVIDIA H100 ->
/// NVIDIA H200, cublaslt 130100 -> 130200". "" when nothing does: another driver or host is no
/// hindrance, though the bits may differ.
std::string plans_hindrance(const Plans& was, const Plans& now);

}  // namespace k25::trainer
