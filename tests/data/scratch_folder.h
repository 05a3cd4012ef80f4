#pragma once
// A folder of a test's own, removed with everything in it; and what the data tests expect of
// errors.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/core/check.h"

namespace k25::data {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "k25-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed: " + name);
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  /// Number of entries: what a failed write left behind shows up here.
  std::ptrdiff_t entries() const {
    return std::distance(std::filesystem::directory_iterator(path_), {});
  }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline void flip_byte(const std::filesystem::path& path, std::int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char old = static_cast<char>(file.get());
  file.seekp(offset);
  file.put(static_cast<char>(old ^ 0x10));
  ASSERT_TRUE(file.good()) << path;
}

/// Runs `action`; expects Error(kind) in one line holding every part. Returns the message.
template <class Action, class... Parts>
std::string expect_error(ErrorKind kind, Action action, const Parts&... parts) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), kind) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const auto& part : std::vector<std::string>{std::string(parts)...}) {
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
    }
    return message;
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

}  // namespace k25::data
