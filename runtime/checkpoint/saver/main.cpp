// dtrain-saver: the process that writes checkpoints. checkpoints::Saver starts it with its settings as one JSON
// argument. File descriptor 3 is the socket to the Saver, 4 the memory with the snapshots, 5 the storage's lock file.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>

#include "dtrain/base/background.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/checkpoint/saver.h"
#include "saver/messages.h"
#include "saver/save.h"
#include "storage_folder.h"

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
    std::fprintf(stderr, "dtrain-saver: %s\n", describe(error).c_str());
    return static_cast<int>(ExitCode::kRunFailed);
  }
}
