#pragma once
// A minimal good config as text, and what the tests expect of a bad one.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "trainer/config/parse.h"

namespace k25::trainer {

// Line numbers matter to the tests: one key a line.
inline const char* const kGoodConfig = R"(run:
  dir: runs/a
model:
  layers: 8
  hidden: 64
  heads: 4
  ffn: 128
  vocab: 512
data:
  train: corpus/manifest.json
  sequence: 128
train:
  steps: 20
  batch: 24
  micro_batch: 1
optim:
  lr: 2.0e-5
)";

/// kGoodConfig with the first `from` replaced.
inline std::string edited(const std::string& from, const std::string& to) {
  std::string text = kGoodConfig;
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("not in the good config: " + from);
  return text.replace(at, from.size(), to);
}

inline ParsedConfig parse(const std::string& text, const std::vector<std::string>& overrides = {},
                          std::int64_t ranks = 1) {
  return parse_config(text, "cfg.yaml", overrides, ranks);
}

/// The problems of a config that must not parse, one a line.
inline std::vector<std::string> problems_of(const std::string& text,
                                            const std::vector<std::string>& overrides = {},
                                            std::int64_t ranks = 1) {
  std::vector<std::string> lines;
  try {
    parse(text, overrides, ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    const std::string message = error.what();
    std::size_t begin = 0;
    for (std::size_t end = message.find('\n'); end != std::string::npos;
         end = message.find('\n', begin)) {
      lines.push_back(message.substr(begin, end - begin));
      begin = end + 1;
    }
    lines.push_back(message.substr(begin));
    return lines;
  }
  ADD_FAILURE() << "the config was accepted:\n" << text;
  return lines;
}

inline std::string only_problem(const std::string& text,
                                const std::vector<std::string>& overrides = {},
                                std::int64_t ranks = 1) {
  const std::vector<std::string> lines = problems_of(text, overrides, ranks);
  EXPECT_EQ(lines.size(), 1u) << ::testing::PrintToString(lines);
  return lines.empty() ? "" : lines[0];
}

/// `message` begins with the place and holds every part.
inline void expect_problem(const std::string& message, const std::string& place,
                           const std::vector<std::string>& parts) {
  EXPECT_EQ(message.rfind(place + ": ", 0), 0u) << "'" << place << "' does not begin: " << message;
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

}  // namespace k25::trainer
