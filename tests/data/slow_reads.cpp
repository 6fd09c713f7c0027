// A slow disk, or a file system that hangs, for whole runs: preload this library. Reads of files whose path contains
// DTRAIN_SLOW_READS_OF take DTRAIN_SLOW_READS_MS longer; or, after the first DTRAIN_SLOW_READS_HANG_AFTER of them in a
// process, never return.
#include <atomic>
#include <cstdlib>
#include <string>

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

namespace {

using Read = ssize_t (*)(int, void*, size_t, off_t);

bool is_slow(int fd) {
  const char* const part = std::getenv("DTRAIN_SLOW_READS_OF");
  if (!part) return false;
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  return length > 0 && std::string(path, static_cast<size_t>(length)).find(part) != std::string::npos;
}

void wait_as_asked() {
  static std::atomic<long> reads{0};
  if (const char* const after = std::getenv("DTRAIN_SLOW_READS_HANG_AFTER"); after && ++reads > std::atol(after)) {
    for (;;) ::pause();
  }
  if (const char* const ms = std::getenv("DTRAIN_SLOW_READS_MS")) {
    const long wait = std::atol(ms);
    const timespec time{wait / 1000, wait % 1000 * 1'000'000};
    ::nanosleep(&time, nullptr);
  }
}

}  // namespace

extern "C" ssize_t pread(int fd, void* into, size_t bytes, off_t offset) {
  static const auto next = reinterpret_cast<Read>(::dlsym(RTLD_NEXT, "pread"));
  if (is_slow(fd)) wait_as_asked();
  return next(fd, into, bytes, offset);
}

extern "C" ssize_t pread64(int fd, void* into, size_t bytes, off_t offset) {
  return pread(fd, into, bytes, offset);
}
