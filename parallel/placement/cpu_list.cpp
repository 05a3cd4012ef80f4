#include "parallel/placement/cpu_list.h"

#include <sched.h>

#include <charconv>
#include <sstream>
#include <system_error>

namespace k25::parallel {

std::vector<int> cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream in(text);
  for (std::string range; std::getline(in, range, ',');) {
    int first = 0, last = 0;
    const char* const end = range.data() + range.size();
    const auto a = std::from_chars(range.data(), end, first);
    if (a.ec != std::errc{}) return {};
    last = first;
    if (a.ptr != end) {
      const auto b = std::from_chars(a.ptr + 1, end, last);
      if (*a.ptr != '-' || b.ec != std::errc{} || b.ptr != end) return {};
    }
    constexpr int kMostCpus = 1 << 16;
    if (first < 0 || last < first || last >= kMostCpus) return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t j = i;
    while (j + 1 < cpus.size() && cpus[j + 1] == cpus[j] + 1) ++j;
    text += (text.empty() ? "" : ",") + std::to_string(cpus[i]);
    if (j > i) text += "-" + std::to_string(cpus[j]);
    i = j + 1;
  }
  return text;
}

std::vector<int> cpus_of_process() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace k25::parallel
