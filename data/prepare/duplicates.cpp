#include "data/prepare/duplicates.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "data/tokenizer/utf8.h"

namespace k25::data {

namespace {

constexpr std::size_t kShingle = 13;

enum class CharacterClass : std::uint8_t { kSeparator, kWord, kAlone };

CharacterClass class_of(char32_t c) {
  if (c < 0x80) {
    const bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return word ? CharacterClass::kWord : CharacterClass::kSeparator;
  }
  const bool separator = c < 0xC0 || (c >= 0x2000 && c <= 0x206F) || (c >= 0x3000 && c <= 0x303F) ||
                         (c >= 0xFF00 && c <= 0xFF0F);
  if (separator) return CharacterClass::kSeparator;
  return c >= 0x2E80 ? CharacterClass::kAlone : CharacterClass::kWord;
}

std::vector<std::uint64_t> token_hashes(std::string_view text) {
  std::vector<std::uint64_t> tokens;
  std::string word;
  const auto flush = [&] {
    if (!word.empty()) tokens.push_back(XXH64(word.data(), word.size(), 0));
    word.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = std::max<std::size_t>(1, utf8_sequence_length(text.substr(at)));
    const std::string_view character = text.substr(at, length);
    at += length;
    const CharacterClass kind = class_of(utf8_code_point(character));
    if (kind != CharacterClass::kWord) flush();
    if (kind == CharacterClass::kSeparator) continue;
    const char first = character[0];
    if (first >= 'A' && first <= 'Z') {
      word += static_cast<char>(first - 'A' + 'a');
    } else {
      word += character;
    }
    if (kind == CharacterClass::kAlone) flush();
  }
  flush();
  return tokens;
}

using Shingles = std::vector<std::uint64_t>;

std::int64_t count_common(const Shingles& a, const Shingles& b) {
  std::int64_t common = 0;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    if (*i == *j) ++common;
    const bool advance_a = *i <= *j, advance_b = *j <= *i;
    i += advance_a ? 1 : 0;
    j += advance_b ? 1 : 0;
  }
  return common;
}

/// Which documents hold a shingle, for shingles in two or more.
class Index {
 public:
  explicit Index(const std::vector<Shingles>& documents) {
    for (std::size_t d = 0; d < documents.size(); ++d) {
      for (const std::uint64_t s : documents[d])
        entries_.emplace_back(s, static_cast<std::int64_t>(d));
    }
    std::sort(entries_.begin(), entries_.end());
    std::size_t kept = 0;
    std::uint64_t previous = 0;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const bool shared = (i > 0 && previous == entries_[i].first) ||
                          (i + 1 < entries_.size() && entries_[i + 1].first == entries_[i].first);
      previous = entries_[i].first;
      if (shared) entries_[kept++] = entries_[i];
    }
    entries_.resize(kept);
    entries_.shrink_to_fit();
  }

  using Entry = std::pair<std::uint64_t, std::int64_t>;
  std::pair<const Entry*, const Entry*> find(std::uint64_t shingle) const {
    const auto first = std::lower_bound(entries_.begin(), entries_.end(), Entry{shingle, -1});
    auto last = first;
    while (last != entries_.end() && last->first == shingle) ++last;
    return {entries_.data() + (first - entries_.begin()),
            entries_.data() + (last - entries_.begin())};
  }

 private:
  std::vector<Entry> entries_;
};

class Clusters {
 public:
  explicit Clusters(std::size_t count) : parent_(count) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }
  std::int64_t find(std::int64_t d) {
    while (parent(d) != d) {
      parent(d) = parent(parent(d));
      d = parent(d);
    }
    return d;
  }
  void join(std::int64_t a, std::int64_t b) {
    const auto [low, high] = std::minmax({find(a), find(b)});
    parent(high) = low;
  }

 private:
  std::int64_t& parent(std::int64_t d) { return parent_[static_cast<std::size_t>(d)]; }
  std::vector<std::int64_t> parent_;
};

class Search {
 public:
  Search(const std::vector<Shingles>& documents, double containment)
      : documents_(documents),
        containment_(containment),
        index_(documents),
        clusters_(documents.size()),
        rank_(documents.size()),
        seen_by_(documents.size(), -1) {
    result_.held_by.assign(documents.size(), -1);
    result_.share.assign(documents.size(), 0);
    result_.share_in_all.assign(documents.size(), 0);
  }

  NearDuplicates run() {
    std::vector<std::int64_t> order(documents_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return at(a).size() > at(b).size(); });
    for (std::size_t i = 0; i < order.size(); ++i) {
      rank_[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
    }
    for (const std::int64_t d : order) {
      if (!at(d).empty()) examine(d);
    }
    for (std::size_t d = 0; d < documents_.size(); ++d) {
      result_.cluster.push_back(clusters_.find(static_cast<std::int64_t>(d)));
    }
    return std::move(result_);
  }

 private:
  const Shingles& at(std::int64_t d) const { return documents_[static_cast<std::size_t>(d)]; }

  void examine(std::int64_t d) {
    const auto size = static_cast<std::int64_t>(at(d).size());
    // Shingles that the other documents hold, rarest first.
    std::vector<std::pair<std::ptrdiff_t, std::uint64_t>> shared;
    for (const std::uint64_t s : at(d)) {
      const auto [first, last] = index_.find(s);
      if (first != last) shared.emplace_back(last - first, s);
    }
    const auto common = static_cast<std::int64_t>(shared.size());
    result_.share_in_all[static_cast<std::size_t>(d)] =
        static_cast<double>(common) / static_cast<double>(size);
    const auto needed = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(std::ceil(containment_ * static_cast<double>(size) - 1e-9)));
    if (common < needed) return;
    std::sort(shared.begin(), shared.end());
    // One that holds `needed` of the `common` misses at most the difference.
    for (std::int64_t i = 0; i <= common - needed; ++i) {
      const auto [first, last] = index_.find(shared[static_cast<std::size_t>(i)].second);
      for (auto entry = first; entry != last; ++entry) compare(d, entry->second, needed);
    }
  }

  void compare(std::int64_t d, std::int64_t other, std::int64_t needed) {
    const auto index = static_cast<std::size_t>(d), o = static_cast<std::size_t>(other);
    if (rank_[o] >= rank_[index] || seen_by_[o] == d) return;
    seen_by_[o] = d;
    const bool settled = result_.held_by[index] >= 0 && clusters_.find(d) == clusters_.find(other);
    if (settled) return;
    const std::int64_t common = count_common(at(d), at(other));
    if (common < needed) return;
    clusters_.join(d, other);
    if (result_.held_by[index] >= 0 || result_.held_by[o] >= 0) return;
    result_.held_by[index] = other;
    result_.share[index] = static_cast<double>(common) / static_cast<double>(at(d).size());
  }

  const std::vector<Shingles>& documents_;
  double containment_;
  Index index_;
  Clusters clusters_;
  std::vector<std::int64_t> rank_;     ///< 0: the largest
  std::vector<std::int64_t> seen_by_;  ///< the last document compared with
  NearDuplicates result_;
};

}  // namespace

std::vector<std::uint64_t> shingles_of(std::string_view text) {
  const std::vector<std::uint64_t> tokens = token_hashes(text);
  Shingles shingles;
  if (tokens.empty()) return shingles;
  const std::size_t width = std::min(kShingle, tokens.size());
  for (std::size_t i = 0; i + width <= tokens.size(); ++i) {
    shingles.push_back(XXH64(tokens.data() + i, width * sizeof(std::uint64_t), width));
  }
  std::sort(shingles.begin(), shingles.end());
  shingles.erase(std::unique(shingles.begin(), shingles.end()), shingles.end());
  return shingles;
}

NearDuplicates find_near_duplicates(const std::vector<std::vector<std::uint64_t>>& shingles,
                                    double containment) {
  return Search(shingles, containment).run();
}

}  // namespace k25::data
