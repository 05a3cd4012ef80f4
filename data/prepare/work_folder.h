#pragma once
// The folder beside `out` in which one process at a time makes the corpus.
//
// The lock is a file beside it, `.NAME.prepare-lock`; the kernel lets go of it when a process dies,
// so whoever holds it may remove what earlier processes left, `.NAME.prepare-XXXXXX`.

#include <filesystem>
#include <functional>
#include <string>

namespace k25::data {

class WorkFolder {
 public:
  /// Takes the lock, removes what was left behind, makes the folder; also finds out early whether
  /// one can write there. Throws kData, naming the other process when it is at work on `out`.
  /// `when_stopped` (may be empty) is as in PrepareOptions.
  WorkFolder(const std::filesystem::path& out,
             const std::function<void(std::function<void()>)>& when_stopped);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  void take_lock(const std::filesystem::path& out);
  void remove_left_behind() const;
  void discard() const;

  std::string prefix_;  ///< of work folders: ".NAME.prepare-"
  std::filesystem::path parent_, path_, lock_path_;
  std::function<void(std::function<void()>)> when_stopped_;
  int lock_ = -1;
};

}  // namespace k25::data
