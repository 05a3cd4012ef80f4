#pragma once
// What a machine sustains: written by `k25 doctor --measure`, read by `k25 plan --ceilings`.

#include <filesystem>
#include <optional>
#include <string>

#include "kernels/core/dtype.h"

namespace k25::trainer {

/// In units of 10^9 bytes and 10^12 operations a second, of one rank. Absent: not known.
struct Ceilings {
  std::optional<double> copy_gb;     ///< read + written
  std::optional<double> gemm_tflop;  ///< in `precision`
  std::optional<double> attention_forward_tflop, attention_backward_tflop;
  std::optional<double> all_gather_gb;      ///< over the wire: what a rank gets from others
  std::optional<double> reduce_scatter_gb;  ///< the same, of what it sends
  std::optional<double> triad_gb;           ///< host memory, read + written
  DType precision = DType::kBFloat16;
};

struct CeilingsFile {
  std::string device;  ///< "NVIDIA H200", or "cpu"
  std::int64_t ranks = 1;
  std::optional<Bytes> memory;  ///< of the device
  Ceilings ceilings;
};

std::string ceilings_json(const CeilingsFile& file);

/// Throws kUsage naming path and mend unless ceilings may be written to `path`: nothing stands
/// there, or a file of ceilings, which is to be replaced. No other file is ever overwritten.
void require_place_for_ceilings(const std::filesystem::path& path);

/// Throws kUsage naming file, key and value: a missing or unreadable file, text that is no JSON,
/// unknown or missing keys, numbers that are not positive.
CeilingsFile read_ceilings(const std::filesystem::path& path);
/// The same of a text that came from the file `name`.
CeilingsFile parse_ceilings(const std::string& text, const std::string& name);

}  // namespace k25::trainer
