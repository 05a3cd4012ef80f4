#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <queue>
#include <string_view>

#include "data/tokenizer/utf8.h"

namespace k25::data {

namespace {

constexpr int kMaxPieceCharacters = 16;
constexpr std::int32_t kNone = -1;

/// A string that is a symbol of some word, or may become one.
struct Piece {
  std::string text;
  int characters = 0;
  std::int64_t count = 0;   ///< pairs that spell it now, times their words' counts
  std::int64_t queued = 0;  ///< its highest entry in the queue; never below `count`
  bool learnt = false;
  std::vector<std::int32_t> words =
      {};  ///< where it was seen as a pair; may hold words it is gone from
};

struct Word {
  std::vector<std::int32_t> symbols;
  std::int64_t count = 0;
};

bool only_spaces(const std::string& text) { return text.find_first_not_of(' ') == text.npos; }

class Learner {
 public:
  explicit Learner(const CountedWords& words) : queue_(Later{pieces_}) {
    words_.reserve(words.size());
    for (const auto& [text, count] : words) {
      Word word{{}, count};
      for (std::size_t at = 0; at < text.size();) {
        const auto length = utf8_sequence_length(std::string_view(text).substr(at));
        word.symbols.push_back(piece_of(text.substr(at, length), 1));
        at += length;
      }
      words_.push_back(std::move(word));
    }
    for (std::size_t w = 0; w < words_.size(); ++w) {
      add_pairs(static_cast<std::int32_t>(w), kNone);
    }
  }

  std::vector<std::string> run(std::int64_t count) {
    std::vector<std::string> merges;
    while (static_cast<std::int64_t>(merges.size()) < count && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      Piece& piece = pieces_[static_cast<std::size_t>(best.piece)];
      if (best.count != piece.queued) continue;  // a lower entry from before the count rose
      piece.queued = 0;
      if (piece.count != best.count) {  // the count fell since
        enqueue(best.piece);
        continue;
      }
      // Later merges may put neighbours together that spell a piece of old.
      if (!piece.learnt) merges.push_back(piece.text);
      piece.learnt = true;
      std::vector<std::int32_t> affected = std::move(piece.words);
      std::sort(affected.begin(), affected.end());
      affected.erase(std::unique(affected.begin(), affected.end()), affected.end());
      for (const std::int32_t w : affected) merge_in(w, best.piece);
    }
    return merges;
  }

 private:
  struct Candidate {
    std::int64_t count;
    std::int32_t piece;
  };
  struct Later {
    const std::vector<Piece>& pieces;
    bool operator()(const Candidate& a, const Candidate& b) const {
      if (a.count != b.count) return a.count < b.count;
      const Piece& p = pieces[static_cast<std::size_t>(a.piece)];
      const Piece& q = pieces[static_cast<std::size_t>(b.piece)];
      if (p.characters != q.characters) return p.characters > q.characters;
      return p.text > q.text;
    }
  };

  std::int32_t piece_of(const std::string& text, int characters) {
    const auto [found, inserted] =
        by_text_.try_emplace(text, static_cast<std::int32_t>(pieces_.size()));
    if (inserted) pieces_.push_back({text, characters});
    return found->second;
  }

  /// The piece that two neighbours spell, or kNone when the rules forbid it.
  std::int32_t joined(std::int32_t left, std::int32_t right) {
    const std::uint64_t key =
        static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
    if (const auto known = by_pair_.find(key); known != by_pair_.end()) return known->second;
    const Piece& l = pieces_[static_cast<std::size_t>(left)];
    const Piece& r = pieces_[static_cast<std::size_t>(right)];
    const int characters = l.characters + r.characters;
    const bool left_spaces = only_spaces(l.text);
    const bool allowed =
        characters <= kMaxPieceCharacters &&
        (r.text[0] == ' ' ? left_spaces && only_spaces(r.text) : !left_spaces || l.characters == 1);
    const std::int32_t piece = allowed ? piece_of(l.text + r.text, characters) : kNone;
    by_pair_.emplace(key, piece);
    return piece;
  }

  /// Calls `each` with the piece of every pair that could be merged at once: of overlapping pairs
  /// that spell the same string ("aaa"), every other one.
  template <class Each>
  void for_each_pair(const Word& word, const Each& each) {
    std::int32_t last = kNone;
    for (std::size_t i = 1; i < word.symbols.size(); ++i) {
      const std::int32_t piece = joined(word.symbols[i - 1], word.symbols[i]);
      if (piece == kNone || piece == last) {
        last = kNone;
        continue;
      }
      each(piece, i);
      last = piece;
    }
  }

  void enqueue(std::int32_t p) {
    Piece& piece = pieces_[static_cast<std::size_t>(p)];
    if (piece.count <= piece.queued) return;
    piece.queued = piece.count;
    queue_.push({piece.count, p});
  }

  /// Counts the pairs of a word; those that hold symbol `fresh` (all, when it is kNone) are new to
  /// it.
  void add_pairs(std::int32_t w, std::int32_t fresh) {
    const Word& word = words_[static_cast<std::size_t>(w)];
    for_each_pair(word, [&](std::int32_t p, std::size_t i) {
      Piece& piece = pieces_[static_cast<std::size_t>(p)];
      piece.count += word.count;
      if (fresh == kNone || word.symbols[i - 1] == fresh || word.symbols[i] == fresh) {
        piece.words.push_back(w);
      }
      enqueue(p);
    });
  }

  void merge_in(std::int32_t w, std::int32_t merged) {
    Word& word = words_[static_cast<std::size_t>(w)];
    for_each_pair(word, [&](std::int32_t p, std::size_t) {
      pieces_[static_cast<std::size_t>(p)].count -= word.count;
    });
    std::vector<std::int32_t> symbols;
    for (std::size_t i = 0; i < word.symbols.size(); ++i) {
      const bool pair =
          i + 1 < word.symbols.size() && joined(word.symbols[i], word.symbols[i + 1]) == merged;
      symbols.push_back(pair ? merged : word.symbols[i]);
      if (pair) ++i;
    }
    word.symbols = std::move(symbols);
    add_pairs(w, merged);
  }

  std::vector<Piece> pieces_;
  std::vector<Word> words_;
  std::unordered_map<std::string, std::int32_t> by_text_;
  std::unordered_map<std::uint64_t, std::int32_t> by_pair_;
  std::priority_queue<Candidate, std::vector<Candidate>, Later> queue_;
};

}  // namespace

std::vector<std::string> learn_merges(const CountedWords& words, std::int64_t count) {
  return Learner(words).run(count);
}

}  // namespace k25::data
