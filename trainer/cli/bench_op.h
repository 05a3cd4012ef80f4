#pragma once
// `k25 bench op`: every op of the model at one size, against what the machine sustains.

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/train/runtime.h"

namespace k25::trainer {

struct OpSizes {
  std::int64_t rows = 8192, tokens = 4096;  ///< rows = sequences x tokens
  std::int64_t hidden = 2048, heads = 16, kv_heads = 16, head_dim = 128, ffn = 5632;
  std::int64_t vocab = 65536;
  DType precision = DType::kBFloat16;
  std::vector<std::string> ops;       ///< of bench_op_names(); empty: all
  std::vector<std::int64_t> threads;  ///< of adamw; empty: 1, 2, 4 ... cores
};

std::vector<std::string> bench_op_names();

/// Prints one line an op: median time, bytes or operations a second, floor, floor / measured. The
/// floor is the necessary bytes (each input read once, each output written once) over the rate of a
/// copy, or the operations over the rate of the matrix product, whichever is longer; both ceilings
/// are measured first, in the same process. Inputs are random, and rotate through more memory than
/// a cache holds. Named, adamw adds GB/s and 10^9 parameters a second on the CPU for each thread
/// count, without (28 bytes a parameter) and with (30) the bf16 copy.
void run_bench_op(Runtime& runtime, const OpSizes& sizes);

}  // namespace k25::trainer
