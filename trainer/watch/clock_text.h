#pragma once
#include <ctime>
#include <string>

namespace k25::trainer {

/// The local time, "2026-01-31 23:59:58".
inline std::string clock_text() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  const std::size_t n = std::strftime(&text[0], sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return {&text[0], n};
}

}  // namespace k25::trainer
