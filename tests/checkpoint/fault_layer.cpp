// A library for LD_PRELOAD that stands between dtrain-saver and the file system. It counts the calls that change
// something below DTRAIN_FAULT_ROOT, lets one of them fail or the process die there, and writes them down, one line
// each, for the simulation of power cuts (power_cut.h).
//
//   DTRAIN_FAULT_ROOT    the folder
//   DTRAIN_FAULT_AT      the number of the call, from 1
//   DTRAIN_FAULT_KIND    kill: SIGKILL instead of the call; eio: it fails with EIO; short: a write writes a part;
//                        nospace: from this call on everything that needs space fails with ENOSPC
//   DTRAIN_FAULT_MARK    a file that is made before the process dies here
//   DTRAIN_FAULT_AFTER   calls count once this file is there
//   DTRAIN_FAULT_READS   files that are opened count, too, though that changes nothing
//   DTRAIN_FAULT_MESSAGES   messages to other processes of this machine count, and nothing else does
//   DTRAIN_FAULT_LOG     the file for the lines
//   DTRAIN_FAULT_NO_EXCHANGE, DTRAIN_FAULT_NO_DIRECT   the file system knows no RENAME_EXCHANGE, no O_DIRECT
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

// Never destroyed: calls come until the very end of the process.
struct Layer {
  std::string root = text("DTRAIN_FAULT_ROOT");
  std::string kind = text("DTRAIN_FAULT_KIND");
  std::string mark = text("DTRAIN_FAULT_MARK");
  std::string after = text("DTRAIN_FAULT_AFTER");
  long at = std::atol(text("DTRAIN_FAULT_AT").c_str());
  bool reads = std::getenv("DTRAIN_FAULT_READS") != nullptr;
  bool messages = std::getenv("DTRAIN_FAULT_MESSAGES") != nullptr;
  bool no_exchange = std::getenv("DTRAIN_FAULT_NO_EXCHANGE") != nullptr;
  bool no_direct = std::getenv("DTRAIN_FAULT_NO_DIRECT") != nullptr;
  int log = -1;
  long calls = 0;
  std::recursive_mutex mutex;

  static std::string text(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
  }
};

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

Layer& layer() {
  static Layer* one = [] {
    auto* made = new Layer;
    const std::string log = Layer::text("DTRAIN_FAULT_LOG");
    if (!log.empty()) {
      made->log =
          real<int(const char*, int, ...)>("open")(log.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    }
    return made;
  }();
  return *one;
}

// Relative to the root ("" for the root itself); null: outside.
const char* below_root(const std::string& path) {
  const std::string& root = layer().root;
  if (root.empty() || !path.starts_with(root)) return nullptr;
  if (path.size() == root.size()) return "";
  return path[root.size()] == '/' ? strdup(path.c_str() + root.size() + 1) : nullptr;  // small, and never freed
}

std::string path_of(int fd) {
  char buffer[4096];
  const ssize_t size = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), buffer, sizeof buffer);
  return size > 0 ? std::string(buffer, static_cast<std::size_t>(size)) : "";
}

std::string path_at(int folder, const char* path) {
  if (path[0] == '/') return path;
  return (folder == AT_FDCWD ? std::string("/") : path_of(folder) + "/") + path;  // dtrain-saver works in /
}

enum class Needs { kNothing, kSpace };
enum class Fate { kCall, kFail, kShort };

// Counts a call below the root and decides about it.
Fate fate_of(Needs needs) {
  Layer& one = layer();
  if (!one.after.empty() && ::access(one.after.c_str(), F_OK) != 0) return Fate::kCall;
  ++one.calls;
  if (one.at <= 0 || one.calls < one.at) return Fate::kCall;
  if (one.kind == "nospace" && needs == Needs::kSpace) {
    errno = ENOSPC;
    return Fate::kFail;
  }
  if (one.calls != one.at) return Fate::kCall;
  if (one.kind == "kill") {
    if (!one.mark.empty()) real<int(const char*, int, ...)>("open")(one.mark.c_str(), O_WRONLY | O_CREAT, 0666);
    ::kill(::getpid(), SIGKILL);
  }
  if (one.kind == "eio") {
    errno = EIO;
    return Fate::kFail;
  }
  return one.kind == "short" ? Fate::kShort : Fate::kCall;
}

void note(const std::string& line) {
  if (layer().log < 0) return;
  const int code = errno;
  const std::string whole = line + "\n";
  if (real<ssize_t(int, const void*, size_t)>("write")(layer().log, whole.data(), whole.size()) < 0) std::abort();
  errno = code;
}

std::string hex(const void* data, std::size_t size) {
  std::string text;
  char digits[3];
  for (std::size_t i = 0; i < size; ++i) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<const unsigned char*>(data)[i]);
    text += digits;
  }
  return text;
}

using Guard = std::lock_guard<std::recursive_mutex>;

int open_file(const char* name, int folder, const char* path, int flags, mode_t mode) {
  const auto call = [&] { return real<int(int, const char*, int, ...)>(name)(folder, path, flags, mode); };
  const bool counts = (flags & O_CREAT) || layer().reads;
  const char* relative = counts ? below_root(path_at(folder, path)) : nullptr;
  if (!relative) return call();
  const Guard guard(layer().mutex);
  if (fate_of(Needs::kSpace) == Fate::kFail) return -1;
  struct stat info {};
  const bool was_there = ::fstatat(folder, path, &info, 0) == 0;
  const int fd = call();
  if (fd >= 0 && !was_there) note(std::string("create ") + relative);
  return fd;
}

ssize_t write_file(int fd, size_t size, off_t offset, const void* data,
                   ssize_t (*call)(int, const void*, size_t, off_t)) {
  const char* relative = fd == layer().log ? nullptr : below_root(path_of(fd));
  if (!relative) return call(fd, data, size, offset);
  const Guard guard(layer().mutex);
  const Fate fate = fate_of(Needs::kSpace);
  if (fate == Fate::kFail) return -1;
  if (fate == Fate::kShort && size > 1) size = size > 4096 ? size / 2 / 4096 * 4096 : size / 2;
  const off_t at = offset >= 0 ? offset : ::lseek(fd, 0, SEEK_CUR);
  const ssize_t count = call(fd, data, size, offset);
  if (count > 0 && layer().log >= 0) {
    note("write " + std::string(relative) + " " + std::to_string(at) + " " + hex(data, static_cast<size_t>(count)));
  }
  return count;
}

template <class Call>
int change(const std::string& path, Needs needs, const std::string& line, const Call& call) {
  const char* relative = below_root(path);
  if (!relative) return call();
  const Guard guard(layer().mutex);
  if (fate_of(needs) == Fate::kFail) return -1;
  const int result = call();
  if (result == 0) note(line + " " + relative);
  return result;
}

int rename_in(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  const bool exchanges = (flags & RENAME_EXCHANGE) != 0;
  const auto call = [&] {
    return real<int(int, const char*, int, const char*, unsigned)>("renameat2")(from_folder, from, to_folder, to,
                                                                                flags);
  };
  const char* source = below_root(path_at(from_folder, from));
  const char* target = below_root(path_at(to_folder, to));
  if (!source || !target) return call();
  const Guard guard(layer().mutex);
  if (fate_of(Needs::kNothing) == Fate::kFail) return -1;
  if (exchanges && layer().no_exchange) {
    errno = EINVAL;
    return -1;
  }
  const int result = call();
  if (result == 0) note((exchanges ? "exchange " : "rename ") + std::string(source) + " " + target);
  return result;
}

int synchronise(const char* name, int fd) {
  struct stat info {};
  const bool folder = ::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
  return change(path_of(fd), Needs::kNothing, folder ? "syncdir" : "fsync", [&] { return real<int(int)>(name)(fd); });
}

bool is_local_socket(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 && address.ss_family == AF_UNIX;
}

mode_t mode_from(int flags, va_list arguments) {
  return (flags & O_CREAT) ? static_cast<mode_t>(va_arg(arguments, unsigned)) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_from(flags, arguments);
  va_end(arguments);
  return open_file("openat", AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_from(flags, arguments);
  va_end(arguments);
  return open_file("openat", AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_from(flags, arguments);
  va_end(arguments);
  return open_file("openat", folder, path, flags, mode);
}

ssize_t write(int fd, const void* data, size_t size) {
  return write_file(fd, size, -1, data, [](int file, const void* bytes, size_t count, off_t) {
    return real<ssize_t(int, const void*, size_t)>("write")(file, bytes, count);
  });
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return write_file(fd, size, offset, data, [](int file, const void* bytes, size_t count, off_t at) {
    return real<ssize_t(int, const void*, size_t, off_t)>("pwrite")(file, bytes, count, at);
  });
}
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  return pwrite(fd, data, size, offset);
}

int ftruncate(int fd, off_t size) noexcept {
  const auto call = [&] { return real<int(int, off_t)>("ftruncate")(fd, size); };
  return change(path_of(fd), Needs::kNothing, "truncate " + std::to_string(size), call);
}
int fallocate(int fd, int mode, off_t offset, off_t size) {
  const auto call = [&] { return real<int(int, int, off_t, off_t)>("fallocate")(fd, mode, offset, size); };
  return change(path_of(fd), Needs::kSpace, "allocate " + std::to_string(offset + size), call);
}
int fsync(int fd) {
  return synchronise("fsync", fd);
}

int mkdir(const char* path, mode_t mode) noexcept {
  const auto call = [&] { return real<int(const char*, mode_t)>("mkdir")(path, mode); };
  return change(path_at(AT_FDCWD, path), Needs::kSpace, "mkdir", call);
}
int rename(const char* from, const char* to) noexcept {
  return rename_in(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return rename_in(from_folder, from, to_folder, to, 0);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  return rename_in(from_folder, from, to_folder, to, flags);
}
int unlink(const char* path) noexcept {
  const auto call = [&] { return real<int(const char*)>("unlink")(path); };
  return change(path_at(AT_FDCWD, path), Needs::kNothing, "remove", call);
}
int rmdir(const char* path) noexcept {
  const auto call = [&] { return real<int(const char*)>("rmdir")(path); };
  return change(path_at(AT_FDCWD, path), Needs::kNothing, "remove", call);
}
int remove(const char* path) noexcept {
  const auto call = [&] { return real<int(const char*)>("remove")(path); };
  return change(path_at(AT_FDCWD, path), Needs::kNothing, "remove", call);
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  const auto call = [&] { return real<int(int, const char*, int)>("unlinkat")(folder, path, flags); };
  return change(path_at(folder, path), Needs::kNothing, "remove", call);
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  const auto call = [&] { return real<ssize_t(int, const msghdr*, int)>("sendmsg")(fd, message, flags); };
  if (!layer().messages || !is_local_socket(fd)) return call();
  const Guard guard(layer().mutex);
  return fate_of(Needs::kNothing) == Fate::kFail ? -1 : call();
}

int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  const bool direct = command == F_SETFL && (reinterpret_cast<long>(argument) & O_DIRECT) != 0;
  if (direct && layer().no_direct && below_root(path_of(fd))) {
    errno = EINVAL;
    return -1;
  }
  return real<int(int, int, ...)>("fcntl")(fd, command, argument);
}

}  // extern "C"
