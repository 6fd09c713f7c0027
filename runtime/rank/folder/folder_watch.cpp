#include "dtrain/rank/folder_watch.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDeleted = " (deleted)";  // the kernel's words
constexpr const char* kMoved = "was moved to ";

}  // namespace

FolderWatch::FolderWatch(fs::path folder)
    : folder_(std::move(folder)), fd_(::open(folder_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
  struct stat held {};
  if (!fd_ || ::fstat(fd_.get(), &held) != 0) {
    throw SystemError("cannot open the run's folder " + folder_.string(), errno);
  }
  // The name is the same on all ranks, and not that of an earlier run of this path.
  substitute_ = folder_.parent_path() / ("lost-" + folder_.filename().string() + "-" + std::to_string(held.st_ino));
}

std::string FolderWatch::gone() const {
  struct stat held {};
  struct stat there {};
  if (!fd_ || ::fstat(fd_.get(), &held) != 0) return {};
  if (::stat(folder_.c_str(), &there) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) return {};
  } else if (there.st_dev == held.st_dev && there.st_ino == held.st_ino) {
    return {};
  }
  std::error_code code;
  const std::string now = fs::read_symlink("/proc/self/fd/" + std::to_string(fd_.get()), code).string();
  if (held.st_nlink == 0 || now.empty() || now.ends_with(kDeleted) || now == folder_) return "was removed";
  return kMoved + now;
}

std::string FolderWatch::warning(const std::string& gone) const {
  const bool is_elsewhere = gone.starts_with(kMoved);
  return "the run's folder " + folder_.string() + " " + gone +
         " while the run goes on: checkpoints and new files have no place. " +
         (is_elsewhere ? "Move it back; if it is not there at the end, the final weights go to "
                       : "The final weights will go to ") +
         substitute_.string();
}

std::string FolderWatch::error(const std::string& gone) const {
  std::string text = "the run's folder " + folder_.string() + " " + gone + " while the run went on";
  const fs::path weights = substitute_ / "checkpoints" / "final" / checkpoints::kModelFile;
  std::error_code code;
  if (fs::exists(weights, code)) text += "; its final weights are in " + weights.string();
  return text;
}

}  // namespace dtrain::run
