// The folder of a run: makes it, writes its events, watches its place, and shows who carries out the run.
#include "dtrain/rank/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include <sys/file.h>
#include <sys/stat.h>

#include "dtrain/base/limits.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/network.h"
#include "dtrain/host/processes.h"
#include "dtrain/profile/event_file.h"

namespace dtrain::rank {

namespace {

namespace fs = std::filesystem;

// Only one process at a time gets a number: two runs of different names must not get the same one.
fs::path make_numbered(const std::string& name) {
  const fs::path runs = fs::absolute("runs");
  make_folder(runs);
  const UniqueFd lock(::open((runs / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!lock || ::flock(lock.get(), LOCK_EX) != 0) {
    throw SystemError("cannot lock " + (runs / ".lock").string(), errno, "give a folder with --run-dir");
  }
  const std::vector<RunFolder> earlier = all_runs();
  const int number = earlier.empty() ? 1 : *earlier.back().number() + 1;
  char prefix[16];
  std::snprintf(prefix, sizeof prefix, "%04d-", number);
  fs::path path = runs / (prefix + folder_name(name));
  if (::mkdir(path.c_str(), 0777) != 0) throw SystemError("cannot make the run's folder " + path.string(), errno);
  return path;
}

constexpr const char* kDeleted = " (deleted)";  // the kernel's words
constexpr const char* kMoved = "was moved to ";

}  // namespace

std::string folder_name(const std::string& name) {
  std::string result;
  for (const char letter : name) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) || letter == '.') {
      result += static_cast<char>(std::tolower(byte));
    } else if (!result.empty() && result.back() != '-') {
      result += '-';
    }
  }
  result = result.substr(0, 60);
  while (!result.empty() && (result.back() == '-' || result.back() == '.')) result.pop_back();
  while (!result.empty() && result.front() == '.') result.erase(0, 1);
  return result.empty() ? "run" : result;
}

fs::path RunFolder::metrics_events() const {
  return path / profile::kEventsFolder / profile::kMetricsEvents;
}

fs::path RunFolder::log(int rank) const {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%04d.log", rank);
  return logs() / name;
}

RunFolder create_run_folder(const fs::path& requested, const std::string& name, const std::string& experiment_text,
                            mode_t private_mode) {
  RunFolder folder;
  if (requested.empty()) {
    folder.path = make_numbered(name);
  } else {
    folder.path = fs::absolute(requested).lexically_normal();
    make_folder(folder.path);
  }
  // The first to create this file owns the folder: of two runs that ask for one folder, the second is refused.
  const bool has_events = fs::exists(folder.events());
  const UniqueFd claim(has_events ? -1
                                  : ::open(folder.experiment().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (has_events || (!claim && errno == EEXIST)) {
    throw ConfigError("--run-dir: " + folder.path.string() + " already holds a run",
                      "give another folder, or leave --run-dir out to get the next one under runs/");
  }
  if (!claim) throw SystemError("cannot write " + folder.experiment().string(), errno);
  write_file_atomic(folder.experiment(), experiment_text, private_mode);
  make_folder(folder.logs());
  make_folder(folder.profile());
  return folder;
}

void share_new_files(const config::Experiment& experiment) {
  if (!experiment.share_with_group) return;
  constexpr mode_t kGroupReads = 0050;
  ::umask(::umask(0) & ~kGroupReads);
}

EventLog::EventLog(const std::filesystem::path& path, const Clock& clock, int rank, std::string host)
    : clock_(clock), rank_(rank), host_(std::move(host)), file_(path) {}

void EventLog::write(const std::string& event, const Json& fields) {
  Json line = {{"time", format_utc(clock_.wall())}, {"event", event}};
  if (rank_ >= 0) line["rank"] = rank_;
  line["pid"] = ::getpid();
  line["host"] = host_;
  if (fields.is_object()) {
    for (const auto& [key, value] : fields.items()) line[key] = value;
  }
  const std::scoped_lock lock(mutex_);
  file_.append(to_line(line) + "\n");
}

Json run_ended(ExitCode exit_code, const std::string& cause) {
  const bool interrupted = exit_code == ExitCode::kInterrupted || exit_code == ExitCode::kPreempted;
  const char* state = exit_code == ExitCode::kDone ? "done" : interrupted ? "interrupted" : "failed";
  Json fields = {{"state", state}, {"exit_code", exit_code}};
  if (!cause.empty()) fields["cause"] = cause;
  return fields;
}

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

// A process that carries out the run owns its folder.

namespace {

Json to_json(const OwnerProcess& owner, const fs::path& run) {
  return {{"host", owner.host},
          {"host_key", owner.host_key},
          {"pid", owner.pid},
          {"start", owner.start},
          {"folder", inode_of(run)}};
}

// Returns the owner; empty: nobody owns the run, or the file cannot be read.
std::optional<OwnerProcess> owner_in(const fs::path& file) {
  try {
    const Json json = Json::parse(read_file(file));
    if (json.at("folder") != inode_of(file.parent_path())) return std::nullopt;
    return OwnerProcess{json.at("host"), json.at("host_key"), json.at("pid"), json.at("start")};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// Returns the file's time by the clock of the file system. Opens the file, so that cached attributes are read anew.
// Empty: there is no such file.
std::optional<Nanoseconds> time_of(const fs::path& file) {
  const UniqueFd opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!opened || ::fstat(opened.get(), &info) != 0) return std::nullopt;
  return std::chrono::seconds(info.st_mtim.tv_sec) + Nanoseconds(info.st_mtim.tv_nsec);
}

// Returns the present time by the clock of the file system.
std::optional<Nanoseconds> time_there(const fs::path& folder) {
  const fs::path probe = folder / (".now-" + std::to_string(::getpid()));
  const UniqueFd file(::open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file) return std::nullopt;
  write_all(file.get(), "now");
  const auto time = time_of(probe);
  ::unlink(probe.c_str());
  return time;
}

// True if a process of another host has touched the file within the last `silence` and does so again within the next.
bool is_touched(const fs::path& file, const OwnerTimes& times) {
  const auto before = time_of(file);
  const auto present = time_there(file.parent_path());
  if (!before || !present || *present - *before > times.silence) return false;
  const auto deadline = std::chrono::steady_clock::now() + times.silence;
  while (std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(times.beat / 10);
    const auto time = time_of(file);
    if (time && *time != *before) return true;
  }
  return false;
}

bool lives(const OwnerProcess& owner, const std::string& host_key, const fs::path& file, const OwnerTimes& times) {
  if (owner.host_key == host_key) return host::start_ticks(owner.pid) == owner.start;
  return is_touched(file, times);
}

}  // namespace

std::uint64_t inode_of(const fs::path& folder) {
  struct stat info {};
  return ::stat(folder.c_str(), &info) == 0 ? info.st_ino : 0;
}

OwnerProcess OwnerProcess::self() {
  const host::HostIdentity identity = host::host_identity();
  return {identity.name, identity.key, ::getpid(), host::start_ticks(::getpid())};
}

RunOwner::RunOwner(const fs::path& run, const OwnerProcess& self, const OwnerTimes& times,
                   const std::vector<std::string>& gone)
    : file_(run / ".owner"), self_(to_json(self, run)), times_(times) {
  const auto owner = owner_in(file_);
  const bool is_gone = owner && std::find(gone.begin(), gone.end(), owner->host) != gone.end();
  if (owner && !is_gone && to_json(*owner, run) != self_ && lives(*owner, self.host_key, file_, times)) {
    throw ConfigError("the run " + run.string() + " is in progress: process " + std::to_string(owner->pid) + " on " +
                          owner->host + " carries it out",
                      "wait for its end, or stop it first (Ctrl-C there, dtrain task kill)");
  }
  write_file_atomic(file_, to_line(self_));
  const BlockedSignals blocked;  // signals are for the threads that wait for them
  thread_ = start_thread("the lock of the run's folder", [this] { beat(); });
}

RunOwner::~RunOwner() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  thread_.join();
  if (is_mine() && ::truncate(file_.c_str(), 0) != 0) return;  // the next one waits for `silence`
}

std::optional<OwnerProcess> owner_here(const fs::path& run) {
  auto owner = owner_in(run / ".owner");
  const bool here = owner && owner->host_key == host::host_identity().key;
  return here && host::start_ticks(owner->pid) == owner->start ? owner : std::nullopt;
}

std::optional<OwnerProcess> owner_elsewhere(const fs::path& run, const OwnerTimes& times) {
  const fs::path file = run / ".owner";
  auto owner = owner_in(file);
  if (!owner || owner->host_key == host::host_identity().key) return std::nullopt;
  const auto touched = time_of(file);
  const auto present = time_there(run);
  return touched && present && *present - *touched <= times.silence ? owner : std::nullopt;
}

bool RunOwner::is_mine() const {
  const auto owner = owner_in(file_);
  return owner && to_json(*owner, file_.parent_path()) == self_;
}

void RunOwner::beat() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, times_.beat, [this] { return ends_; })) {
    // An owner that was taken for gone, as after a suspended machine, must not touch the file of its successor.
    if (is_mine()) ::utimensat(AT_FDCWD, file_.c_str(), nullptr, 0);  // after a failure the next beat tries again
  }
}

RunLock RunLock::take(const RunFolder& folder, const std::vector<std::string>& gone) {
  const std::filesystem::path path = folder.path / ".lock";
  RunLock lock;
  lock.file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!lock.file_) throw SystemError("cannot open " + path.string(), errno);
  // Any other error: this file system has no locks.
  if (::flock(lock.file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    const std::string holder = read_file(path);
    throw ConfigError("the run " + folder.path.string() + " is in progress: " +
                          (holder.empty() ? std::string("another process") : holder) + " carries it out",
                      "wait for its end, or stop it first (Ctrl-C there, dtrain task kill)");
  }
  lock.own(folder, gone);
  return lock;
}

void RunLock::own(const RunFolder& folder, const std::vector<std::string>& gone) {
  const OwnerProcess self = OwnerProcess::self();
  owner_ = std::make_unique<RunOwner>(folder.path, self, OwnerTimes{}, gone);
  const std::string text = "process " + std::to_string(self.pid) + " on " + self.host;
  if (::ftruncate(file_.get(), 0) != 0 || ::lseek(file_.get(), 0, SEEK_SET) != 0) return;  // for messages alone
  write_all(file_.get(), text);
}

}  // namespace dtrain::rank
