#include "parallel/placement/gather_texts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace k25::parallel {

std::vector<std::string> gather_texts(Communicator& comm, std::string_view name,
                                      const std::string& text) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto mine = static_cast<std::size_t>(comm.rank());
  std::vector<std::int64_t> sizes(ranks, 0);
  sizes[mine] = static_cast<std::int64_t>(text.size());
  comm.all_gather({.name = name}, {.buffer = sizes.data(), .per_rank = Bytes{8}}).wait();
  const auto largest = static_cast<std::size_t>(*std::ranges::max_element(sizes));
  std::vector<char> all(ranks * largest, '\0');
  std::ranges::copy(text, all.begin() + static_cast<std::ptrdiff_t>(mine * largest));
  comm.all_gather({.name = name},
                  {.buffer = all.data(), .per_rank = Bytes{static_cast<std::int64_t>(largest)}})
      .wait();
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < ranks; ++r) {
    texts.emplace_back(all.data() + r * largest, static_cast<std::size_t>(sizes[r]));
  }
  return texts;
}

}  // namespace k25::parallel
