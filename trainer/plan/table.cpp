#include "trainer/plan/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace k25::trainer {

Table::Table(std::string label, std::vector<std::string> headings) {
  add(std::move(label), std::move(headings));
}

void Table::add(std::string label, std::vector<std::string> cells) {
  cells.insert(cells.begin(), std::move(label));
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line = fmt::format("{:<{}}", row[0], widths[0]);
    for (std::size_t i = 1; i < row.size(); ++i) {
      line += fmt::format("  {:>{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string gib_text(double bytes) {
  const double gib = bytes / 0x1p30;
  return fmt::format("{:.{}f}", gib, bytes == 0.0 || std::abs(gib) >= 0.001 ? 3 : 6);
}

}  // namespace k25::trainer
