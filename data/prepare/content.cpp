#include "data/prepare/content.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>
#include <utility>

#include "data/io/block_digest.h"
#include "data/prepare/duplicates.h"
#include "data/prepare/source_files.h"
#include "data/tokenizer/tokenizer.h"
#include "kernels/core/check.h"

namespace k25::data {

namespace {

constexpr std::size_t kNotesOfAKind = 20;
constexpr double kNotedShare = 0.5;

enum class Fate : std::uint8_t { kKept, kExactDuplicate, kNearDuplicate };

struct Entry {
  Document document;
  std::int64_t same_as = -1;  ///< the first document with this text
  Fate fate = Fate::kKept;
};

/// Notes of one kind: the first few in full, then how many more.
class NoteList {
 public:
  void add(const std::string& note) {
    if (notes_.size() < kNotesOfAKind) notes_.push_back(note);
    ++count_;
  }
  void move_to(std::vector<std::string>& out, const std::string& what) {
    out.insert(out.end(), notes_.begin(), notes_.end());
    if (count_ > notes_.size()) {
      out.push_back("and " + std::to_string(count_ - notes_.size()) + " more " + what);
    }
  }

 private:
  std::vector<std::string> notes_;
  std::size_t count_ = 0;
};

std::string percent(double share) { return std::to_string(std::lround(share * 100)) + " %"; }

class Preparation {
 public:
  Preparation(const PrepareOptions& options, std::filesystem::path work)
      : options_(options), work_(std::move(work)) {
    if (!options.tokenizer.empty()) check_tokenizer();  // a bad one shows before any work
    sources_ = find_source_files(options.folders);
  }

  PreparedContent run() {
    note_files();
    scan();
    find_duplicates();
    const Tokenizer tokenizer = make_tokenizer();
    tokenise(tokenizer);
    describe(tokenizer);
    return {std::move(content_), std::move(report_)};
  }

 private:
  void check_tokenizer() const {
    std::error_code error;
    if (!std::filesystem::exists(options_.tokenizer, error)) {
      fail(ErrorKind::kUsage, "--tokenizer " + options_.tokenizer.string() + ": no such file");
    }
    try {
      Tokenizer{options_.tokenizer};
    } catch (const Error& bad) {
      fail(bad.kind(), std::string(bad.what()) + "; leave --tokenizer out to train a new one");
    }
  }

  void note_files() {
    report_.files = static_cast<std::int64_t>(sources_.files.size());
    report_.links_skipped = sources_.links_skipped;
    report_.hidden_skipped = sources_.hidden_skipped;
    NoteList by_content;
    for (const SourceFile& file : sources_.files) {
      if (file.form_by_content) by_content.add(file.path.string() + " is read as JSON lines");
    }
    by_content.move_to(report_.notes, "files read as JSON lines");
  }

  /// First reading: identity, shingles, and what each document carries besides its text.
  void scan() {
    std::map<std::string, std::int64_t> ignored;
    std::unordered_map<std::string, std::int64_t> first;
    for_each_source([&](const Record& record, const SourceFile& file) {
      const std::string text = record.text();
      Entry entry;
      entry.document.source = record.source;
      entry.document.sha256 = sha256_hex(text);
      entry.document.domain = file.domain;
      entry.document.topic = record.topic;
      entry.document.hops = record.hops;
      const auto index = static_cast<std::int64_t>(entries_.size());
      const auto [known, is_new] = first.try_emplace(entry.document.sha256, index);
      if (!is_new) entry.same_as = known->second;
      entries_.push_back(std::move(entry));
      shingles_.push_back(is_new ? shingles_of(text) : std::vector<std::uint64_t>());
      for (const std::string& key : record.ignored_keys) ++ignored[key];
    });
    NoteList notes;
    for (const auto& [key, count] : ignored) {
      notes.add("JSON key \"" + key + "\" is ignored (" + std::to_string(count) + " lines)");
    }
    notes.move_to(report_.notes, "ignored JSON keys");
  }

  void find_duplicates() {
    const NearDuplicates near = find_near_duplicates(shingles_, options_.containment);
    shingles_ = {};
    NoteList exact_notes, near_notes, share_notes;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      Entry& entry = entries_[i];
      if (entry.same_as >= 0) {
        ++report_.exact_duplicates;
        if (options_.duplicates != Duplicates::kKeep) entry.fate = Fate::kExactDuplicate;
        exact_notes.add(label(entry) + " is the same text as " + label(at(entry.same_as)) +
                        outcome(entry));
      } else if (near.held_by[i] >= 0) {
        ++report_.near_duplicates;
        if (options_.duplicates == Duplicates::kDropNear) entry.fate = Fate::kNearDuplicate;
        near_notes.add(label(entry) + " lies to " + percent(near.share[i]) + " in " +
                       label(at(near.held_by[i])) + outcome(entry));
      } else if (near.share_in_all[i] >= kNotedShare) {
        share_notes.add(label(entry) + " lies to " + percent(near.share_in_all[i]) +
                        " in the other documents together");
      }
      report_.dropped += entry.fate == Fate::kKept ? 0 : 1;
    }
    exact_notes.move_to(report_.notes, "exact duplicates");
    near_notes.move_to(report_.notes, "near-duplicates");
    share_notes.move_to(report_.notes, "documents that lie to half or more in others");
    number_clusters(near.cluster);
    warn_of_empty_domains();
  }

  /// Clusters in the order of their first kept document.
  void number_clusters(const std::vector<std::int64_t>& first_of) {
    std::unordered_map<std::int64_t, std::int32_t> numbers;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].fate != Fate::kKept) continue;
      const std::int64_t self =
          entries_[i].same_as >= 0 ? entries_[i].same_as : static_cast<std::int64_t>(i);
      const std::int64_t cluster = first_of[static_cast<std::size_t>(self)];
      entries_[i].document.cluster =
          numbers.try_emplace(cluster, static_cast<std::int32_t>(numbers.size())).first->second;
    }
  }

  Tokenizer make_tokenizer() {
    content_.tokenizer = options_.tokenizer;
    if (content_.tokenizer.empty()) {
      content_.tokenizer = work_ / "tokenizer.model";
      const auto texts = [&](const std::function<void(std::string_view)>& each) {
        for_each_kept([&](const Record& record, Entry&, const SourceFile&) {
          for (const Segment& segment : record.segments) each(segment.text);
        });
      };
      Tokenizer::train_streaming(texts, {.vocab = options_.vocab}, content_.tokenizer);
    }
    return Tokenizer(content_.tokenizer);
  }

  void tokenise(const Tokenizer& tokenizer) {
    for_each_kept([&](const Record& record, Entry& entry, const SourceFile& file) {
      const std::string text = record.text();
      if (sha256_hex(text) != entry.document.sha256) refuse_change(file);
      entry.document.token_begin = static_cast<std::int64_t>(content_.tokens.size());
      for (const Segment& segment : record.segments) {
        const std::vector<std::int32_t> ids = tokenizer.encode(segment.text);
        if (tokenizer.decode(ids) != segment.text) {
          fail(ErrorKind::kData, file.path.string() + ": the tokenizer " +
                                     content_.tokenizer.string() +
                                     " changes the text of document " + entry.document.source +
                                     ": use another one, or leave --tokenizer out");
        }
        content_.tokens.insert(content_.tokens.end(), ids.begin(), ids.end());
        content_.labels.resize(content_.tokens.size(), segment.label);
      }
      content_.tokens.push_back(tokenizer.end_of_document());
      content_.labels.push_back(record.segments.back().label);
      entry.document.token_end = static_cast<std::int64_t>(content_.tokens.size());
      report_.bytes += static_cast<std::int64_t>(text.size());
      content_.documents.push_back(std::move(entry.document));
    });
  }

  /// Every folder holds documents, so a domain without any has lost them as duplicates.
  void warn_of_empty_domains() {
    std::vector<std::int64_t> dropped(sources_.domains.size(), 0), kept(dropped);
    for (const Entry& entry : entries_) {
      auto& count = entry.fate == Fate::kKept ? kept : dropped;
      ++count[static_cast<std::size_t>(entry.document.domain)];
    }
    for (std::size_t d = 0; d < kept.size(); ++d) {
      if (kept[d] > 0) continue;
      report_.warnings.push_back("domain '" + sources_.domains[d] + "' is empty: its documents (" +
                                 std::to_string(dropped[d]) +
                                 ") are all dropped as duplicates of others; --keep-duplicates "
                                 "keeps exact ones");
    }
  }

  void describe(const Tokenizer& tokenizer) {
    report_.documents = static_cast<std::int64_t>(content_.documents.size());
    report_.tokens = static_cast<std::int64_t>(content_.tokens.size());
    content_.info.vocab = tokenizer.vocab();
    content_.info.end_of_document = tokenizer.end_of_document();
    content_.info.domains = sources_.domains;
    content_.max_file_tokens = options_.max_file_tokens;
    for (std::int32_t id = 0; id < tokenizer.vocab(); ++id) {
      content_.token_bytes.push_back(tokenizer.token_bytes(id));
    }
  }

  template <class Each>
  void for_each_source(const Each& each) {
    for (const SourceFile& file : sources_.files) {
      for_each_record(file, [&](const Record& record) { each(record, file); });
    }
  }

  /// Later readings: the documents that stay. The files must still hold what scan() saw.
  template <class Each>
  void for_each_kept(const Each& each) {
    std::size_t next = 0;
    for_each_source([&](const Record& record, const SourceFile& file) {
      if (next == entries_.size()) refuse_change(file);
      Entry& entry = entries_[next++];
      if (entry.fate == Fate::kKept) each(record, entry, file);
    });
    if (next != entries_.size()) refuse_change(sources_.files.back());
  }

  [[noreturn]] static void refuse_change(const SourceFile& file) {
    fail(ErrorKind::kData,
         file.path.string() + ": the file was changed while it was being read: prepare again");
  }

  const Entry& at(std::int64_t index) const { return entries_[static_cast<std::size_t>(index)]; }
  std::string label(const Entry& entry) const {
    const auto domain = static_cast<std::size_t>(entry.document.domain);
    return (sources_.domains.size() > 1 ? sources_.domains[domain] + "/" : "") +
           entry.document.source;
  }
  static std::string outcome(const Entry& entry) {
    return entry.fate == Fate::kKept ? ": kept" : ": dropped";
  }

  const PrepareOptions& options_;
  std::filesystem::path work_;
  SourceFiles sources_;
  std::vector<Entry> entries_;
  std::vector<std::vector<std::uint64_t>> shingles_;
  CorpusContent content_;
  PrepareReport report_;
};

}  // namespace

PreparedContent prepare_content(const PrepareOptions& options, const std::filesystem::path& work) {
  return Preparation(options, work).run();
}

}  // namespace k25::data
