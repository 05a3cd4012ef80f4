#include "trainer/cli/options.h"

#include <filesystem>
#include <system_error>

#include "kernels/core/check.h"
#include "parallel/comm/agree.h"

namespace k25::trainer {
namespace {

YamlNode scalar_of(const std::string& text) {
  YamlNode node;
  node.kind = YamlNode::Kind::kScalar;
  node.scalar = text;
  return node;
}

std::string problem(const std::string& expected, const YamlNode& node) {
  return expected.empty() ? expected : "expected " + expected + ", got " + given(node);
}

}  // namespace

CLI::Validator integer_option(std::int64_t low, std::int64_t high) {
  return {[=](std::string& text) {
            std::int64_t value = 0;
            const YamlNode node = scalar_of(text);
            const std::string expected = read_integer(node, low, high, value);
            if (expected.empty()) text = std::to_string(value);  // 1e6
            return problem(expected, node);
          },
          ""};
}

CLI::Validator number_option(const NumberRange& range) {
  return {[=](std::string& text) {
            double value = 0.0;
            const YamlNode node = scalar_of(text);
            return problem(read_number(node, range, value), node);
          },
          ""};
}

void require_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_type type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::none) {
    fail(ErrorKind::kUsage, "'" + path + "': k25 may not look there: " + error.message());
  }
  if (type != std::filesystem::file_type::not_found) return;
  fail(ErrorKind::kUsage, "'" + path + "': no such file or folder");
}

void require_path(parallel::Communicator& comm, const std::string& path) {
  parallel::from_rank0(comm, "path", [&] {
    require_path(path);
    return std::string();
  });
}

}  // namespace k25::trainer
