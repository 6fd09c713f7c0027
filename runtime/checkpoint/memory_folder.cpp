#include "dtrain/checkpoint/memory_folder.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "dtrain/base/cgroup.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/checkpoint/assemble.h"
#include "dtrain/checkpoint/host_states.h"
#include "dtrain/host/processes.h"
#include "storage.h"

namespace dtrain::checkpoints {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMemory = "/dev/shm";
constexpr const char* kOwnerFile = "owner.json";
constexpr std::size_t kLargestOwnerFile = 64 << 10;
constexpr std::chrono::milliseconds kPoll{20};
constexpr std::chrono::seconds kPatienceWithSaver{10};

std::string prefix_of_user() {
  return "dtrain-" + std::to_string(::geteuid()) + "-";
}

// FNV-1a. Two runs of one user with the same digest would need a few billion runs.
std::string digest(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3u;
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(hash >> shift & 0xff);
  return to_hex(bytes);
}

// Containers may share /dev/shm, and number their processes themselves.
std::string process_namespace() {
  std::error_code code;
  return fs::read_symlink("/proc/self/ns/pid", code).string();
}

Json owner_of(const fs::path& folder) {
  try {
    return parse_if_valid(read_file(folder / kOwnerFile, kLargestOwnerFile)).value_or(Json());
  } catch (const Error&) {
    return {};
  }
}

// True if the process that owns the folder has ended. False where that is not known.
bool has_ended(const Json& owner) {
  if (text_at(owner, "processes") != process_namespace()) return false;
  const auto pid = value_at<pid_t>(owner, "pid");
  const auto start = value_at<std::uint64_t>(owner, "start_ticks");
  return pid && start && host::start_ticks(*pid) != *start;
}

// A new state changes the folder's time.
bool has_changed_within(const fs::path& folder, std::chrono::seconds time) {
  std::error_code code;
  const auto changed = fs::last_write_time(folder, code);
  return !code && fs::file_time_type::clock::now() - changed < time;
}

// True if nobody carries out the folder's run any more, nor is about to.
bool is_abandoned(const fs::path& folder) {
  const Json owner = owner_of(folder);
  const std::chrono::seconds stays(value_at<std::int64_t>(owner, "stays_s").value_or(0));
  return has_ended(owner) && !has_changed_within(folder, stays);
}

// Hosts of this run that share the machine keep theirs.
void sweep(const fs::path& run) {
  std::error_code code;
  const std::string prefix = prefix_of_user();
  std::vector<fs::path> abandoned;
  for (fs::directory_iterator entry(kMemory, code); !code && entry != fs::directory_iterator(); entry.increment(code)) {
    const fs::path& path = entry->path();
    if (!path.filename().string().starts_with(prefix) || !is_own_folder(path) || !is_abandoned(path)) continue;
    if (text_at(owner_of(path), "run") != run.string()) abandoned.push_back(path);
  }
  for (const fs::path& path : abandoned) fs::remove_all(path, code);
}

// Makes a whole state of the furthest part, where this host has the files of all ranks.
void make_newest_whole(const fs::path& folder) {
  const HostStates here = look_at_host(folder);
  std::int64_t step = -1;
  for (const auto& part : here.parts) {
    if (part.ranks.size() == static_cast<std::size_t>(part.world)) step = std::max(step, part.step);
  }
  for (const auto& state : here.whole) step = state.step >= step ? -1 : step;
  if (step < 0) return;
  const fs::path part = part_folder(folder, step), made = gathered_folder(folder, step);
  delete_tree(made);
  make_folder(made);
  for (const auto& entry : fs::directory_iterator(part)) {
    fs::create_hard_link(entry.path(), made / entry.path().filename());
  }
  assemble(made, read_manifest(part).about);
  fs::rename(made, whole_folder(folder, step));
}

fs::path resolved(const fs::path& run) {
  std::error_code code;
  const fs::path whole = fs::weakly_canonical(run, code);
  return code ? run : whole;
}

}  // namespace

bool is_own_folder(const fs::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & 077) == 0;
}

fs::path memory_folder_of(const fs::path& run, int host) {
  const std::string of_host = host == kNoKeeper ? "" : "\nhost " + std::to_string(host);
  return fs::path(kMemory) / (prefix_of_user() + digest(resolved(run).string() + of_host));
}

std::optional<Entry> newest_in_memory(const fs::path& run, int host) {
  const fs::path folder = memory_folder_of(run, host);
  if (!is_own_folder(folder)) return std::nullopt;
  try {
    for (std::vector<Entry> entries = list(folder); !entries.empty(); entries.pop_back()) {
      if (entries.back().damage.empty()) return entries.back();
    }
  } catch (const Error&) {  // another process removes the folder
  }
  return std::nullopt;
}

std::int64_t newest_batch_in_memory(const fs::path& run, int host) {
  std::int64_t newest = 0;
  const HostStates here = look_at_host(memory_folder_of(run, host));
  for (const auto& states : {here.whole, here.parts}) {
    for (const auto& state : states) newest = std::max(newest, state.step);
  }
  return newest;
}

std::optional<fs::path> save_newest_in_memory(const fs::path& run, const fs::path& storage, int host) {
  make_newest_whole(memory_folder_of(run, host));
  const auto newest = newest_in_memory(run, host);
  if (!newest) return std::nullopt;
  make_folder(storage);
  StorageLock lock(storage);
  for (auto waited = kPoll; !lock.try_take(); waited += kPoll) {
    if (waited > kPatienceWithSaver) throw SystemError("another process writes into " + storage.string(), EBUSY);
    std::this_thread::sleep_for(kPoll);
  }
  for (const Entry& entry : list(storage)) {
    if (entry.damage.empty() && entry.about.step >= newest->about.step) return std::nullopt;
  }
  add_checksums(newest->path);
  if (!adopt_checkpoint(newest->path, storage)) return std::nullopt;
  return storage / newest->path.filename();
}

MemoryFolder::MemoryFolder(const fs::path& run, int host, pid_t owner, std::chrono::seconds stays) {
  const fs::path path = memory_folder_of(run, host);
  sweep(resolved(run));
  if (::mkdir(path.c_str(), 0700) != 0 && (errno != EEXIST || !is_own_folder(path))) {
    problem_ = "cannot make " + path.string() + ": " +
               (errno == EEXIST ? "another user has made it" : std::generic_category().message(errno));
    return;
  }
  if (const Json before = owner_of(path); stays.count() > 0 && before.is_object() && !has_ended(before)) {
    path_ = path;
    return;
  }
  try {
    write_file_atomic(path / kOwnerFile, to_line({{"pid", owner},
                                                  {"start_ticks", host::start_ticks(owner)},
                                                  {"processes", process_namespace()},
                                                  {"stays_s", stays.count()},
                                                  {"run", resolved(run).string()}}) +
                                             "\n");
    path_ = path;
  } catch (const SystemError& error) {
    problem_ = error.what();
    std::error_code code;
    fs::remove_all(path, code);
  }
}

void MemoryFolder::clear() const {
  std::error_code code;
  std::vector<fs::path> states;
  for (const auto& entry : fs::directory_iterator(path_, code)) {
    if (entry.path().filename() != kOwnerFile) states.push_back(entry.path());
  }
  for (const fs::path& state : states) fs::remove_all(state, code);
}

MemoryFolder::~MemoryFolder() {
  std::error_code code;
  if (!path_.empty()) fs::remove_all(path_, code);
}

std::string why_no_room(const fs::path& folder, std::size_t bytes) {
  const auto needs = [&](std::size_t free, const std::string& where) -> std::string {
    if (bytes + free / 10 <= free) return {};
    return "the states would take " + format_bytes(static_cast<double>(bytes)) + ", and " + where + " has " +
           format_bytes(static_cast<double>(free)) + " free";
  };
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) {
    return "cannot look at " + folder.string() + ": " + std::generic_category().message(errno);
  }
  const std::string full = needs(static_cast<std::size_t>(info.f_bavail) * info.f_frsize, kMemory);
  if (!full.empty()) return full;
  const auto available = available_memory();
  return available ? needs(*available, "this machine") : std::string();
}

}  // namespace dtrain::checkpoints
