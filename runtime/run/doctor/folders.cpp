// The folder of runs and the folder of the ledger.
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "doctor/checks.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/host/filesystem.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;
using SteadyClock = std::chrono::steady_clock;

constexpr double kLittleSpace = 1024.0 * 1024 * 1024;
constexpr double kNoSpace = 64.0 * 1024 * 1024;
constexpr double kSlow = 20.0 * 1024 * 1024;  // bytes per second
constexpr std::size_t kChunk = 4u << 20;
constexpr std::size_t kMost = 64u << 20;
constexpr auto kLongest = std::chrono::milliseconds(500);

// Opens a file that has no name when this returns.
UniqueFd open_unnamed(const fs::path& folder) {
  UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (fd || errno == EACCES || errno == EROFS || errno == ENOSPC) return fd;
  const fs::path file = folder / (".dtrain-doctor-" + random_hex(8));  // for file systems without O_TMPFILE
  fd.reset(::open(file.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  const int code = errno;
  ::unlink(file.c_str());
  errno = code;
  return fd;
}

Finding check_speed(const fs::path& folder, double free) {
  const UniqueFd fd = open_unnamed(folder);
  if (!fd) {
    return problem("disk speed", "cannot write into " + folder.string() + ": " + std::strerror(errno),
                   "give another folder with --run-dir, or make it writable");
  }
  const std::string chunk(kChunk, 'x');
  const auto start = SteadyClock::now();
  std::size_t written = 0;
  const auto limit = static_cast<std::size_t>(std::min(static_cast<double>(kMost), free / 4));
  while (written < limit && SteadyClock::now() - start < kLongest) {
    const ssize_t count = ::write(fd.get(), chunk.data(), std::min(kChunk, limit - written));
    if (count <= 0) {
      return problem("disk speed", "writing into " + folder.string() + " failed: " + std::strerror(errno),
                     "is it full, or its quota used up?");
    }
    written += static_cast<std::size_t>(count);
  }
  if (::fsync(fd.get()) != 0) {
    return problem("disk speed", "syncing a file in " + folder.string() + " failed: " + std::strerror(errno),
                   "the disk or the file server has errors: see the kernel's log");
  }
  const double seconds = to_seconds(SteadyClock::now() - start);
  if (written == 0) return ok("disk speed", "not measured: there is no space to write into");
  const double rate = static_cast<double>(written) / std::max(seconds, 1e-9);
  const std::string text = format_bytes(rate) + "/s written and synced";
  if (rate >= kSlow) return ok("disk speed", text);
  return warning("disk speed", text,
                 "records and weights are written there: choose a folder on a faster disk with --run-dir");
}

}  // namespace

fs::path existing_part(const fs::path& folder) {
  fs::path result = fs::absolute(folder).lexically_normal();
  std::error_code code;
  while (!fs::is_directory(result, code) && result.has_relative_path()) result = result.parent_path();
  return result;
}

std::vector<Finding> check_folder(const fs::path& folder) {
  const fs::path there = existing_part(folder);
  struct statvfs info {};
  if (::statvfs(there.c_str(), &info) != 0) {
    return {problem("disk space", there.string() + ": " + std::strerror(errno), "give another folder with --run-dir")};
  }
  const double free = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  std::string text = format_bytes(free) + " free in " + there.string();
  if (const auto network = host::network_filesystem(there)) text += " (" + *network + ")";
  const std::string remedy = "make room there, or write runs elsewhere with --run-dir";
  const Finding space = free < kNoSpace       ? problem("disk space", text, remedy)
                        : free < kLittleSpace ? warning("disk space", text, remedy)
                                              : ok("disk space", text);
  return {space, check_speed(there, free)};
}

Finding check_state_folder(const Variables& variables) {
  try {
    const fs::path folder = state_folder(variables);
    const fs::path there = existing_part(folder);
    if (const auto network = host::network_filesystem(there)) {
      return problem("ledger", folder.string() + " is on a network file system (" + *network + ")",
                     "name a local folder in DTRAIN_STATE_DIR: on a network file system file locks do not work "
                     "between hosts");
    }
    if (::access(there.c_str(), W_OK) != 0) {
      return problem("ledger", there.string() + " cannot be written", "name another folder in DTRAIN_STATE_DIR");
    }
    return ok("ledger", "in " + folder.string());
  } catch (const Error& error) {
    return problem("ledger", error.what(), error.remedy());
  }
}

}  // namespace dtrain::run
