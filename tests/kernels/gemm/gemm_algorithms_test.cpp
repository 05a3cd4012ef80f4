// The table's strings. What cuBLASLt says to a stored algorithm: gemm_cuda_test.

#include "kernels/gemm/gemm_algorithms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/kernels/op_test.h"

namespace k25::kernels {
namespace {

using op_test::throws_error;
using Strings = std::vector<std::string>;

GemmAlgorithmKey weight_gradient() {
  return {.m = 8192,
          .n = 2048,
          .k = 512,
          .transpose_a = Transpose::kYes,
          .dtype_ab = DType::kBFloat16,
          .dtype_d = DType::kFloat32,
          .accumulate = Accumulate::kAdd,
          .alignment = {16, 2, 4}};
}

std::string words(char digit = '0') { return std::string(127, digit) + "7"; }

std::string entry(const std::string& product) { return product + " cublaslt=130100 " + words(); }

TEST(GemmAlgorithms, EntriesAreWrittenAsDocumented) {
  EXPECT_EQ(gemm_algorithm_string(
                weight_gradient(),
                {.library = 130100, .words = {0xfedcba9876543210u, 0, 0, 0, 0, 0, 0, 7}}),
            "bf16->fp32 m=8192 n=2048 k=512 A^T B add align=16,2,4 cublaslt=130100 "
            "fedcba9876543210" +
                std::string(16 * 7 - 1, '0') + "7");
  EXPECT_EQ(
      gemm_algorithm_string(
          {.m = 1, .n = 2, .k = 3, .transpose_b = Transpose::kYes, .alignment = {4, 8, 16}}, {}),
      "fp32->fp32 m=1 n=2 k=3 A B^T overwrite align=4,8,16 cublaslt=0 " + std::string(128, '0'));
}

TEST(GemmAlgorithms, WhatWasWrittenIsReadBack) {
  const Strings stored{
      entry("fp32->fp32 m=1 n=2 k=3 A B^T overwrite align=4,8,16"),
      entry("fp32->fp32 m=1 n=2 k=3 A^T B^T add align=4,8,16"),
      entry("bf16->fp32 m=8192 n=2048 k=9223372036854775807 A^T B add align=16,2,4"),
      entry("bf16->bf16 m=8192 n=2048 k=512 A B overwrite align=16,2,2")};
  GemmAlgorithms table;
  table.load(stored);
  EXPECT_EQ(table.size(), 4u);
  Strings sorted = table.to_strings(), expected = stored;
  GemmAlgorithms again;
  again.load(sorted);
  EXPECT_EQ(again.to_strings(), sorted);  // the order is the table's
  std::sort(sorted.begin(), sorted.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(sorted, expected);
}

TEST(GemmAlgorithms, MalformedEntriesAreRefused) {
  const std::string good = entry("bf16->fp32 m=8 n=4 k=2 A^T B add align=16,2,4");
  const std::string head = "bf16->fp32 m=8 n=4 k=2 A^T B add align=16,2,4 cublaslt=130100 ";
  const Strings bad{"",
                    "x",
                    " " + good,
                    good + " ",
                    good + "0",
                    good.substr(0, good.size() - 1),
                    head + words('g'),
                    head + words('A'),
                    entry("fp64->fp64 m=8 n=4 k=2 A^T B add align=16,8,8"),
                    entry("fp32->bf16 m=8 n=4 k=2 A^T B add align=16,4,4"),
                    entry("bf16->fp32 m=08 n=4 k=2 A^T B add align=16,2,4"),
                    entry("bf16->fp32 m=0 n=4 k=2 A^T B add align=16,2,4"),
                    entry("bf16->fp32 m=-8 n=4 k=2 A^T B add align=16,2,4"),
                    entry("bf16->fp32 m=9223372036854775808 n=4 k=2 A^T B add align=16,2,4"),
                    entry("bf16->fp32 m=8 n=4 k=2 A^T B add align=16,2,2"),
                    entry("bf16->fp32 m=8 n=4 k=2 A^T B add align=32,2,4"),
                    entry("bf16->fp32 m=8 n=4 k=2 A^T B add align=12,2,4"),
                    entry("bf16->fp32 m=8 n=4 k=2 A^T B add align=16,2"),
                    entry("bf16->fp32 m=8 n=4 k=2 A^T C add align=16,2,4"),
                    entry("bf16->fp32 m=8 n=4 k=2 A^T B  add align=16,2,4"),
                    "bf16->fp32 m=8 n=4 k=2 A^T B add align=16,2,4 " + words()};
  for (const std::string& text : bad) {
    GemmAlgorithms table;
    EXPECT_TRUE(throws_error([&] { table.load(Strings{good, text}); }, ErrorKind::kUsage,
                             {"stored GEMM algorithm '" + text + "'", "remove the entry"}));
    EXPECT_EQ(table.size(), 0u) << "a refused list leaves the table as it was";
  }
}

TEST(GemmAlgorithms, TwoForOneProductAreRefused) {
  const std::string product = "bf16->fp32 m=8 n=4 k=2 A^T B add align=16,2,4 cublaslt=130100 ";
  GemmAlgorithms table;
  table.load(Strings{product + words()});
  EXPECT_TRUE(throws_error([&] { table.load(Strings{product + words('1')}); }, ErrorKind::kUsage,
                           {product + words('1'), "a second one"}));
  EXPECT_EQ(table.to_strings(), Strings{product + words()});
}

}  // namespace
}  // namespace k25::kernels
