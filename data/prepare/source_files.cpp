#include "data/prepare/source_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <system_error>

#include "data/io/atomic_file.h"
#include "data/prepare/text_check.h"
#include "data/tokenizer/tokenizer.h"
#include "kernels/core/check.h"

namespace k25::data {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& path, const std::string& why) {
  fail(ErrorKind::kData, printable(path.string()) + ": " + why);
}

/// Names go into the manifest, which is JSON, and into messages of one line.
void check_name(const fs::path& path, const std::string& name) {
  const bool control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  if (control || find_invalid_utf8(name) >= 0) {
    refuse(path, "the name is not UTF-8 or holds a control character: rename it");
  }
}

std::string domain_name(const fs::path& folder) {
  std::error_code error;
  fs::path whole = fs::absolute(folder, error).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  std::string name = whole.filename().string();
  if (error || name.empty()) {
    fail(ErrorKind::kUsage, "folder '" + folder.string() + "' has no name to call the domain by");
  }
  check_name(folder, name);
  return name;
}

class Walk {
 public:
  Walk(const fs::path& root, std::int32_t domain, SourceFiles& found)
      : root_(root), domain_(domain), found_(found) {}

  void run() {
    std::error_code error;
    const fs::file_status status = fs::status(root_, error);
    if (status.type() == fs::file_type::not_found) {
      fail(ErrorKind::kUsage, printable(root_.string()) + ": no such folder");
    }
    if (error) refuse(root_, error.message());
    if (!fs::is_directory(status))
      refuse(root_, "not a folder: give the folder that holds the file");
    const std::int64_t links = found_.links_skipped, hidden = found_.hidden_skipped;
    enter(root_, "");
    if (files_.empty()) {
      refuse(root_, "the folder holds no documents (" +
                        std::to_string(found_.links_skipped - links) + " symbolic links and " +
                        std::to_string(found_.hidden_skipped - hidden) + " hidden names skipped)");
    }
    std::sort(files_.begin(), files_.end(),
              [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
    found_.files.insert(found_.files.end(), files_.begin(), files_.end());
  }

 private:
  void enter(const fs::path& folder, const std::string& prefix) {
    std::error_code error;
    fs::directory_iterator entries(folder, error);
    if (error) refuse(folder, "cannot list the folder: " + error.message());
    while (entries != fs::directory_iterator()) {
      visit(entries->path(), prefix);
      entries.increment(error);
      if (error) refuse(folder, "cannot list the folder: " + error.message());
    }
  }

  void visit(const fs::path& path, const std::string& prefix) {
    const std::string base = path.filename().string();
    if (base[0] == '.') {
      ++found_.hidden_skipped;
      return;
    }
    std::error_code error;
    const fs::file_status status = fs::symlink_status(path, error);
    if (error) refuse(path, error.message());
    if (fs::is_symlink(status)) {
      ++found_.links_skipped;
      return;
    }
    check_name(path, base);
    if (fs::is_directory(status)) return enter(path, prefix + base + "/");
    if (!fs::is_regular_file(status)) {
      refuse(path, "neither a file nor a folder: move it out of the folder");
    }
    files_.push_back({path, prefix + base, domain_});
  }

  const fs::path& root_;
  std::int32_t domain_;
  SourceFiles& found_;
  std::vector<SourceFile> files_;
};

constexpr const char* kBlank = " \t\r\n\v\f";

bool is_blank(std::string_view line) { return line.find_first_not_of(kBlank) == line.npos; }

/// Calls `each(line, number)` for the lines that are not blank; stops when it returns false.
template <class Each>
void for_each_line(const fs::path& path, const Each& each) {
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse(path, std::string("cannot open: ") + std::strerror(errno));
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    std::string_view content = line;
    if (number == 1 && content.starts_with("\xEF\xBB\xBF")) content.remove_prefix(3);
    if (!is_blank(content) && !each(content, number)) return;
  }
  if (in.bad()) refuse(path, std::string("cannot read: ") + std::strerror(errno));
}

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return extension;
}

/// What the lines of a file say about its form.
struct LineSigns {
  char start = ' ';           ///< the first character that is not blank
  bool first_object = false;  ///< the first line is a JSON object
  bool record = false;        ///< some line is a record; looked for after '{' only
  std::int64_t lines = 0;     ///< that are not blank; counted until the form is clear
};

LineSigns look_at_lines(const fs::path& path) {
  LineSigns signs;
  for_each_line(path, [&](std::string_view line, std::int64_t) {
    if (++signs.lines == 1) {
      signs.start = line[line.find_first_not_of(kBlank)];
      signs.first_object = signs.start == '{' && is_json_object(line);
    }
    if (signs.start != '{') return false;
    signs.record = line[line.find_first_not_of(kBlank)] == '{' && looks_like_record(line);
    return !signs.record && (!signs.first_object || signs.lines < 2);
  });
  return signs;
}

/// JSON that holds records, but not one a line: as text it would teach brackets and quotes.
void refuse_other_json(const fs::path& path, char start) {
  if (start != '[' && start != '{') return;
  std::string text = read_file(path, ErrorKind::kData);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  const char* what = start == '[' && is_array_of_records(text) ? "a JSON array of records"
                     : start == '{' && looks_like_record(text)
                         ? "one JSON record over several lines"
                         : nullptr;
  if (what == nullptr) return;
  refuse(path, std::string(what) +
                   ": write one object a line (JSON lines), as 'jq -c' does, or move the file out "
                   "of the folder");
}

void find_form(SourceFile& file) {
  const std::string extension = lower_extension(file.path);
  if (extension == ".jsonl" || extension == ".ndjson") {
    file.form = FileForm::kJsonLines;
    return;
  }
  const LineSigns signs = look_at_lines(file.path);
  const bool one_document = extension == ".json" && signs.lines == 1 && !signs.record;
  if (signs.record || (signs.first_object && !one_document)) {
    file.form = FileForm::kJsonLines;
    file.form_by_content = true;
    return;
  }
  refuse_other_json(file.path, signs.start);
}

Record read_line(const SourceFile& file, std::string_view line, const std::string& number) {
  const std::string where = file.path.string() + ":" + number;
  if (!file.form_by_content) return parse_record(line, where);
  try {
    return parse_record(line, where);
  } catch (const Error& error) {
    fail(error.kind(), std::string(error.what()) +
                           " (the file begins as JSON lines do, so each line must be one such "
                           "object)");
  }
}

}  // namespace

SourceFiles find_source_files(const std::vector<fs::path>& folders) {
  SourceFiles found;
  for (const fs::path& folder : folders) {
    const std::string name = domain_name(folder);
    if (std::find(found.domains.begin(), found.domains.end(), name) != found.domains.end()) {
      fail(ErrorKind::kUsage, "two folders are called '" + name + "' (the second is '" +
                                  folder.string() +
                                  "'): a folder's name is its domain, so rename one");
    }
    found.domains.push_back(name);
  }
  for (std::size_t i = 0; i < folders.size(); ++i) {
    Walk(folders[i], static_cast<std::int32_t>(i), found).run();
  }
  for (SourceFile& file : found.files) {
    check_text_file(file.path);
    find_form(file);
  }
  return found;
}

void for_each_record(const SourceFile& file, const std::function<void(const Record&)>& each) {
  if (file.form == FileForm::kText) {
    Record record;
    record.segments.push_back({read_file(file.path, ErrorKind::kData), 1});
    record.source = file.name;
    return each(record);
  }
  std::int64_t records = 0;
  for_each_line(file.path, [&](std::string_view line, std::int64_t number) {
    const std::string at = std::to_string(number);
    Record record = read_line(file, line, at);
    record.source = (record.source.empty() ? file.name : record.source) + "#" + at;
    each(record);
    ++records;
    return true;
  });
  if (records == 0) refuse(file.path, "holds blank lines only, no JSON object");
}

}  // namespace k25::data
