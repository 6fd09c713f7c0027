#include "saver/saver_loop.h"

#include <array>
#include <cerrno>

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "saver/messages.h"
#include "saver/save.h"

namespace dtrain::checkpoints {
namespace {

// The number of local ranks is in the memory itself.
SnapshotMemory map_snapshot(UniqueFd fd) {
  SharedMemory memory = SharedMemory::map(std::move(fd));
  const int ranks = SnapshotMemory::local_ranks_of(memory);
  return {std::move(memory), ranks};
}

// The rank that started this process. The end of the socket alone would not do: a process that the rank has forked may
// still hold it.
class Starter {
 public:
  Starter(int socket, pid_t pid) : socket_(socket) {
    if (::getppid() == pid) process_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    gone_ = ::getppid() != pid;
  }

  // Waits this long, or until it is gone; whether it is gone.
  bool wait_for_end(std::chrono::milliseconds patience) {
    if (!gone_) wait(0, patience);
    return gone_;
  }
  // Waits for a message, or for the end of the connection; false: it is gone, and has left no message.
  bool wait_for_message() {
    while (!gone_) {
      if (wait(POLLIN, std::chrono::milliseconds(-1))) return true;
    }
    return wait(POLLIN, std::chrono::milliseconds(0));
  }

 private:
  // Whether one of `events` is there.
  bool wait(short events, std::chrono::milliseconds patience) {
    std::array<pollfd, 2> entries{pollfd{socket_, events, 0}, pollfd{process_.get(), POLLIN, 0}};
    const int count = ::poll(entries.data(), entries.size(), static_cast<int>(patience.count()));
    if (count < 0 && errno != EINTR) throw SystemError("cannot wait for the rank", errno);
    if (count <= 0) return false;
    if (entries[0].revents & events) return true;  // also what it sent before it was gone
    gone_ = (entries[0].revents & (POLLHUP | POLLERR)) != 0 || entries[1].revents != 0;
    return false;
  }

  int socket_;
  UniqueFd process_;
  bool gone_ = false;
};

}  // namespace

void serve(const SaverOptions& options, UnixSocket socket, UniqueFd memory_fd, StorageLock lock, pid_t starter_pid,
           const Logger& log) {
  const SnapshotMemory memory = map_snapshot(std::move(memory_fd));
  memory.prefault(0, memory.bytes());  // not during the first save, at idle priority
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

}  // namespace dtrain::checkpoints
