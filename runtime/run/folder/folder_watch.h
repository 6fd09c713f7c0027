// Watches whether a run's folder is still in its place: open files stay usable after the folder was removed or moved,
// so nothing else shows it until the next file is to be made. Any thread.
#pragma once

#include <filesystem>
#include <string>

#include "dtrain/base/file.h"

namespace dtrain::run {

class FolderWatch {
 public:
  FolderWatch() = default;  // of no folder, which is always in its place
  // SystemError if the folder cannot be opened.
  explicit FolderWatch(std::filesystem::path folder);

  // "was removed", "was moved to /data/old"; empty: it is in its place, or the file system does not answer. Looks.
  std::string gone() const;
  // Returns the folder for the final weights in that case: beside the run's folder, used by no run. It may not exist.
  const std::filesystem::path& substitute() const { return substitute_; }

  // Returns the warning for the time while the run goes on.
  std::string warning(const std::string& gone) const;
  // Returns the error for the run's end: with the path of the final weights if they are in the substitute.
  std::string error(const std::string& gone) const;

 private:
  std::filesystem::path folder_;
  std::filesystem::path substitute_;
  UniqueFd fd_;
};

}  // namespace dtrain::run
