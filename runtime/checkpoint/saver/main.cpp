// dtrain-saver: the process that writes checkpoints. checkpoints::Saver starts it with its settings as one JSON
// argument. File descriptor 3 is the socket to the Saver, 4 the memory with the snapshots, 5 the storage's lock file.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/log.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/checkpoint/saver.h"
#include "saver/image_writer.h"
#include "saver/partial_folder.h"
#include "saver/process.h"
#include "storage.h"

namespace dtrain::checkpoints {
namespace {

struct SaveEnvironment {
  const SaverOptions& options;
  const SnapshotMemory& memory;
  StorageLock& lock;
  // Waits this long, or until the rank that sent the request has ended. Returns true if it has ended.
  std::function<bool(std::chrono::milliseconds)> wait_for_end_of_rank;
  Logger log;
};

using Steady = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kShortestPoll{2};
constexpr milliseconds kLongestPoll{100};
// The longest time that hosts wait for each other when their ranks have ended.
constexpr milliseconds kGrace{10'000};

double seconds_from(Steady::time_point begin, Steady::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string with_remedy(const std::exception& error) {
  const auto* typed = dynamic_cast<const Error*>(&error);
  return describe(error) + (typed && !typed->remedy().empty() ? "; " + typed->remedy() : "");
}

// Deletes the partial folder unless it has become a checkpoint.
class PartialGuard {
 public:
  explicit PartialGuard(const std::filesystem::path& path) : path_(path) {}
  ~PartialGuard() {
    if (path_.empty()) return;
    std::error_code code;
    std::filesystem::remove_all(path_, code);  // the next saver deletes the rest
  }
  PartialGuard& operator=(PartialGuard&&) = delete;
  void release() { path_.clear(); }

 private:
  std::filesystem::path path_;
};

class Save {
 public:
  Save(const SaveOrder& order, const SaveEnvironment& environment)
      : order_(order),
        environment_(environment),
        storage_(environment.options.storage),
        partial_(storage_ / folder_name(kPartialPrefix, about().step)) {}

  void run(SaveResult& result) { environment_.options.host == 0 ? complete(result) : contribute(result); }
  double waited_s() const { return waited_s_; }
  // The time at which this host's files were durable; empty: they are not.
  std::optional<Steady::time_point> durable_at() const { return durable_at_; }

 private:
  const About& about() const { return order_.request.about; }
  milliseconds patience() const {
    return milliseconds(static_cast<std::int64_t>(std::max(order_.request.patience_s, 0.0) * 1000));
  }

  // Polls until `answered` is true; false when patience() is over, which ends soon after the rank. Adds to waited_s().
  bool wait_until(const std::function<bool()>& answered) {
    const auto begin = Steady::now();
    auto deadline = begin + patience();
    auto period = kShortestPoll;
    bool gone = false;
    bool there = answered();
    while (!there && Steady::now() < deadline) {
      if (environment_.wait_for_end_of_rank(period) && !std::exchange(gone, true)) {
        deadline = std::min(deadline, Steady::now() + kGrace);
      }
      if (gone) std::this_thread::sleep_for(period);
      period = std::min(2 * period, kLongestPoll);
      there = answered();
    }
    waited_s_ += seconds_from(begin, Steady::now());
    return there;
  }

  void take_lock() {
    if (wait_until([&] { return environment_.lock.try_take(); })) return;
    throw Error("another process writes checkpoints into " + storage_.string() + " (it holds " + kLockFile + ")",
                "end it if it is a saver of an earlier attempt; give each run a folder of its own");
  }

  // patience() does not apply, because a rank may need the time of its batch.
  void wait_for_copies() {
    const auto begin = Steady::now();
    bool gone = false;
    while (!environment_.memory.all_copied(order_.request.number)) {
      if (gone) throw Error("the run has ended before all ranks had copied their training state");
      gone = environment_.wait_for_end_of_rank(kShortestPoll);
    }
    waited_s_ += seconds_from(begin, Steady::now());
  }

  std::vector<ManifestFile> write_own_files(const OpenFolder& folder) {
    return write_images(folder, order_.request.files, environment_.memory, order_.request.number,
                        [&] { environment_.memory.mark_free(order_.request.number); });
  }

  std::vector<ManifestFile> collect(const OpenFolder& folder, const std::string& token, int host) {
    std::optional<std::vector<ManifestFile>> files;
    if (!wait_until([&] { return (files = find_host_part(folder, token, host)).has_value(); })) {
      throw Error("host " + std::to_string(host) + " has not written its files into " + partial_.string() + " in time",
                  "its saver's log says why; do all hosts see the same folder under this path?");
    }
    return *files;
  }

  void complete(SaveResult& result) {
    take_lock();
    clean_leftovers(storage_);
    const OpenFolder folder = make_partial(storage_, about().step);
    PartialGuard guard(partial_);
    const int hosts = environment_.options.hosts;
    const std::string token = hosts > 1 ? write_beginning(folder, about()) : std::string();
    wait_for_copies();

    Manifest manifest{about(), write_own_files(folder)};
    manifest.files.push_back(write_small_file(folder, kStateFile, order_.state));
    for (int host = 1; host < hosts; ++host) {
      const auto files = collect(folder, token, host);
      manifest.files.insert(manifest.files.end(), files.begin(), files.end());
    }
    std::sort(manifest.files.begin(), manifest.files.end(),
              [](const ManifestFile& a, const ManifestFile& b) { return a.name < b.name; });
    const std::string text = to_text(manifest);
    parse_manifest(text);  // checks that it can be read: no two files of one name
    write_small_file(folder, kManifestFile, text);
    if (hosts > 1) remove_host_parts(folder, hosts);
    sync_folder(folder.fd.get(), folder.path);
    sync_companion();
    result.path = publish(storage_, manifest);
    durable_at_ = Steady::now();
    guard.release();
    result.bytes = total_bytes(manifest.files);
    result.not_finite = not_finite_weight(manifest.files);
    retire(result);
  }

  // Synchronises the companion file. A failure is only logged, because the checkpoint can be used without the file.
  void sync_companion() {
    const std::filesystem::path& path = order_.request.companion;
    if (path.empty()) return;
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file && ::fsync(file.get()) == 0) return;
    environment_.log->warn("{} may lack lines after a power cut: it cannot be synced: {}", path.string(),
                           std::generic_category().message(errno));
  }

  // Deletes superseded checkpoints. Failures are only logged, because the new checkpoint is durable.
  void retire(SaveResult& result) {
    try {
      std::vector<std::filesystem::path> gone;
      Retention retention = environment_.options.retention;
      retention.passed_over = order_.request.passed_over;
      for (const Entry& entry : superseded(list(storage_), about().step, retention)) gone.push_back(entry.path);
      remove_checkpoints(gone);
      for (const auto& path : gone) result.deleted.push_back(path.filename());
    } catch (const std::exception& error) {
      environment_.log->warn("checkpoints that are no longer wanted stay: {}", describe(error));
    }
  }

  void contribute(SaveResult& result) {
    std::optional<Beginning> beginning;
    if (!wait_until([&] { return (beginning = find_beginning(partial_, about())).has_value(); })) {
      throw Error(
          "host 0 has not begun the checkpoint in time: there is no " + partial_.string() + " as seen from here",
          "all hosts must see the same folder under this path: name a folder on a shared file system as "
          "checkpoint_storage");
    }
    const int host = environment_.options.host;
    try {
      wait_for_copies();
      const auto files = write_own_files(beginning->folder);
      sync_folder(beginning->folder.fd.get(), partial_);
      write_host_part(beginning->folder, beginning->token, host, files, "");
      durable_at_ = Steady::now();
      result.path = storage_ / step_folder(about().step);
      result.bytes = total_bytes(files);
    } catch (const std::exception& error) {
      report_failure(*beginning, host, with_remedy(error));
      throw;
    }
  }

  void report_failure(const Beginning& beginning, int host, const std::string& error) {
    try {
      write_host_part(beginning.folder, beginning.token, host, {}, error);
    } catch (const std::exception& second) {
      environment_.log->warn("cannot tell host 0 what has failed: {}", describe(second));
    }
  }

  const SaveOrder& order_;
  const SaveEnvironment& environment_;
  std::filesystem::path storage_;
  std::filesystem::path partial_;
  double waited_s_ = 0;
  std::optional<Steady::time_point> durable_at_;
};

// Makes one checkpoint, from the request until it is durable. Never throws: the result has the error. The snapshot's
// memory is free afterwards.
SaveResult save(const SaveOrder& order, const SaveEnvironment& environment) {
  SaveResult result;
  result.about = order.request.about;
  const auto begin = Steady::now();
  const double cpu_before = cpu_seconds();
  Save saving(order, environment);
  try {
    saving.run(result);
  } catch (const std::exception& error) {
    result.path.clear();
    result.error = with_remedy(error);
  }
  environment.memory.mark_free(order.request.number);
  result.wait_s = saving.waited_s();
  result.write_s = seconds_from(begin, saving.durable_at().value_or(Steady::now())) - result.wait_s;
  result.cpu_s = cpu_seconds() - cpu_before;
  if (result.error.empty()) {
    environment.log->info("batch {}: {} in {:.3f} s, after waiting for {:.3f} s; {:.3f} s of processor time",
                          result.about.step, format_bytes(static_cast<double>(result.bytes)), result.write_s,
                          result.wait_s, result.cpu_s);
  } else {
    environment.log->error("batch {}: {}", result.about.step, result.error);
  }
  return result;
}

}  // namespace

}  // namespace dtrain::checkpoints

namespace {

using namespace dtrain;
using namespace dtrain::checkpoints;

// Lets the kernel kill this process before training if memory runs out, and resets the affinity, which is that of the
// rank that started the process, to all processors that the process may use. Each call may be forbidden, which is
// ignored.
void step_back() {
  constexpr const char* kOomScore = "500";  // of 1000
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(static_cast<std::size_t>(cpu), &all);
  ::sched_setaffinity(0, sizeof all, &all);
  const UniqueFd score(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (score) write_all(score.get(), kOomScore);
}

// The memory contains the number of local ranks.
SnapshotMemory map_snapshot(UniqueFd fd) {
  SharedMemory memory = SharedMemory::map(std::move(fd));
  const int ranks = SnapshotMemory::local_ranks_of(memory);
  return {std::move(memory), ranks};
}

// The rank that started this process. The end of the socket alone is not enough: a process that the rank has forked may
// still hold it.
class Starter {
 public:
  Starter(int socket, pid_t pid) : socket_(socket) {
    if (::getppid() == pid) process_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    gone_ = ::getppid() != pid;
  }

  // Waits this long, or until the rank has ended. Returns true if it has ended.
  bool wait_for_end(std::chrono::milliseconds patience) {
    if (!gone_) wait(0, patience);
    return gone_;
  }
  // Waits for a message or for the end of the rank. False: the rank has ended and has left no message.
  bool wait_for_message() {
    while (!gone_) {
      if (wait(POLLIN, std::chrono::milliseconds(-1))) return true;
    }
    return wait(POLLIN, std::chrono::milliseconds(0));
  }

 private:
  // Returns true if one of `events` has occurred.
  bool wait(short events, std::chrono::milliseconds patience) {
    std::array<pollfd, 2> entries{pollfd{socket_, events, 0}, pollfd{process_.get(), POLLIN, 0}};
    const int count = ::poll(entries.data(), entries.size(), static_cast<int>(patience.count()));
    if (count < 0 && errno != EINTR) throw SystemError("cannot wait for the rank", errno);
    if (count <= 0) return false;
    if (entries[0].revents & events) return true;  // also messages from before the rank's end
    gone_ = (entries[0].revents & (POLLHUP | POLLERR)) != 0 || entries[1].revents != 0;
    return false;
  }

  int socket_;
  UniqueFd process_;
  bool gone_ = false;
};

// Serves save requests until the rank that started this process has ended. SystemError.
void serve(const SaverOptions& options, UnixSocket socket, UniqueFd memory_fd, StorageLock lock, pid_t starter_pid,
           const Logger& log) {
  const SnapshotMemory memory = map_snapshot(std::move(memory_fd));
  memory.prefault(0, memory.bytes());  // here rather than in the first save, at idle priority
  Starter starter(socket.fd(), starter_pid);
  const SaveEnvironment environment{options, memory, lock,
                                    [&](std::chrono::milliseconds time) { return starter.wait_for_end(time); }, log};
  while (starter.wait_for_message()) {
    const auto message = receive_message(socket, std::chrono::milliseconds(0), nullptr);
    if (!message) return;
    const SaveResult result = save(save_order_from(*message), environment);
    if (!send_message(socket, to_line(to_json(result)))) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || ::fcntl(kSocketFd, F_GETFD) < 0 || ::fcntl(kMemoryFd, F_GETFD) < 0) {
    std::fputs("dtrain-saver is started by dtrain, not by hand\n", stderr);
    return static_cast<int>(ExitCode::kBadInput);
  }
  prepare_for_limits();
  ignore_polite_ends();
  ::fcntl(kSocketFd, F_SETFD, FD_CLOEXEC);
  ::fcntl(kMemoryFd, F_SETFD, FD_CLOEXEC);
  ::fcntl(kLockFd, F_SETFD, FD_CLOEXEC);
  step_back();
  try {
    const Json settings = Json::parse(argv[1]);
    const SaverOptions options = saver_options_from(settings);
    redirect_output(options.log);
    [[maybe_unused]] const int moved = ::chdir("/");  // so that no file system is in use
    StorageLock lock(options.storage);
    if (settings.at("locked") == true) lock.adopt(UniqueFd(kLockFd));
    serve(options, UnixSocket(UniqueFd(kSocketFd)), UniqueFd(kMemoryFd), std::move(lock),
          settings.at("starter_pid").get<pid_t>(), make_stderr_logger());
    return static_cast<int>(ExitCode::kDone);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrain-saver: %s\n", with_remedy(error).c_str());
    return static_cast<int>(ExitCode::kRunFailed);
  }
}
