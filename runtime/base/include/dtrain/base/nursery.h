// A nursery: a process of a program that has loaded its libraries and waits. New processes of the program are forks of
// it, so that they start in milliseconds. They are children of the nursery's own parent, and its end does not end them.
// One thread on both sides.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <sys/types.h>

#include "dtrain/base/subprocess.h"
#include "dtrain/base/unix_socket.h"

namespace dtrain {

// The variable that tells a process that it is a nursery.
inline constexpr const char* kNurseryVariable = "DTRAIN_NURSERY";

// The side of the parent. The destructor kills the nursery, and not the processes that came from it.
class Nursery {
 public:
  enum class State { kLoading, kReady, kEnded };

  // Starts the nursery: `options` are those of the processes that will come from it. In the background it loads at a
  // lower priority. SystemError if it cannot be started.
  enum class Loading { kInBackground, kAtOnce };
  explicit Nursery(ProcessOptions options, Loading loading = Loading::kInBackground);

  pid_t pid() const { return process_.pid(); }
  int fd() const { return socket_.fd(); }  // readable (poll) when look() has something to read
  // Reads what the nursery has said.
  State look();
  // Why it has ended: its own reason, or its exit status.
  const std::string& why_ended() const { return why_ended_; }

  // Starts a process as Process::start() does. Empty: the nursery is not ready, or it has loaded under other conditions
  // (its command, the number of its cores, variables whose names do not begin with DTRAIN_), or it has not answered,
  // which ends it.
  std::optional<Process> start(const ProcessOptions& options);

 private:
  bool has_loaded_like(const ProcessOptions& options) const;
  std::optional<Process> fork(const ProcessOptions& options);
  void end(const std::string& why);

  ProcessOptions options_;
  UnixSocket socket_;
  Process process_;
  State state_ = State::kLoading;
  std::string why_ended_;
};

// The side of the program. Returns at once if this process is no nursery. A nursery stays in this function until its
// parent is gone, and then ends; each new process returns from it, with its own variables, cores, working folder and
// file descriptors. A nursery that could not be copied whole (it has threads, child processes or open files) says so
// and ends. `fork`: as ::fork().
void serve_nursery(const std::function<pid_t()>& fork = ::fork);

}  // namespace dtrain
