#pragma once
// Lists of CPUs as the kernel writes them.

#include <string>
#include <vector>

namespace k25::parallel {

/// "0-3,8" as numbers; empty for text that is no list.
std::vector<int> cpu_list(const std::string& text);
/// The reverse.
std::string cpu_list_text(const std::vector<int>& cpus);

/// This process's affinity mask.
std::vector<int> cpus_of_process();

}  // namespace k25::parallel
