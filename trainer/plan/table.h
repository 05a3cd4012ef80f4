#pragma once
// Aligned columns of text: labels to the left, cells to the right.

#include <string>
#include <vector>

namespace k25::trainer {

class Table {
 public:
  /// The first column's heading, then one heading a column.
  Table(std::string label, std::vector<std::string> headings);
  void add(std::string label, std::vector<std::string> cells);
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// "1.500"; six digits behind the point below 1 MiB.
std::string gib_text(double bytes);

}  // namespace k25::trainer
