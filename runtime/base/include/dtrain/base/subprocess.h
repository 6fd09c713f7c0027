// Starts and watches other processes.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "dtrain/base/error.h"
#include "dtrain/base/fd.h"

namespace dtrain {

struct ExitStatus {
  int code = 0;    // meaningful when signal is 0
  int signal = 0;  // the signal that killed it, or 0
  ExitCode exit_code() const { return static_cast<ExitCode>(code); }
  bool success() const { return code == 0 && signal == 0; }
  std::string describe() const;  // "exit status 3", "killed by signal 9 (SIGKILL)"
};

struct ProcessOptions {
  std::vector<std::string> command;                // program (without a slash: in the child's PATH) and arguments
  std::map<std::string, std::string> environment;  // added to this process's own; the same name replaces
  std::vector<std::string> unset;                  // variables of this process that the child does not get
  std::map<int, int> fds;                          // number in the child -> file descriptor here; others are closed
  std::vector<int> cpus;                           // affinity; empty: as this process
  std::filesystem::path working_folder;            // empty: as this process
  bool new_process_group = true;                   // so that a terminal's Ctrl-C reaches only the launcher
};

// A child process. The destructor kills it (SIGKILL to its group) and reaps it, so no orphan and no zombie is left. If
// it ends by itself, wait() kills the processes that are left in its group. One thread at a time.
class Process {
 public:
  // SystemError if the program cannot be started; it names the program and the reason.
  static Process start(const ProcessOptions& options);
  Process(Process&&) noexcept;
  Process& operator=(Process&&) noexcept;
  ~Process();

  pid_t pid() const { return pid_; }
  // Returns a file descriptor that is readable (poll) once the process has ended.
  int pidfd() const { return pidfd_.get(); }
  // Returns the status once the process has ended; empty if it still runs after `timeout`.
  std::optional<ExitStatus> wait(std::chrono::milliseconds timeout);
  ExitStatus wait();
  void kill(int signal) const;        // the process
  void kill_group(int signal) const;  // the process and its descendants in its group
  // Leaves the process running: the destructor then does nothing.
  void detach() { pid_ = -1; }

 private:
  Process(pid_t pid, UniqueFd pidfd, bool own_group) : pid_(pid), pidfd_(std::move(pidfd)), own_group_(own_group) {}
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  bool own_group_ = false;
  std::optional<ExitStatus> status_;
};

// Returns the first line that a program prints; empty if the program fails or takes longer than 5 s. SystemError if it
// cannot be started.
std::string first_output_line(const std::vector<std::string>& command);

// is_program() is true if `file` can be executed. find_in_path() returns the executable `name` (without a slash) in the
// folders of `path`, which has the form of PATH (null: the usual folders); empty: there is none.
bool is_program(const std::filesystem::path& file);
std::filesystem::path find_in_path(const std::string& name, const std::string* path);

// Return the path of the running program, and of the folder of the shared library that holds `address_inside`.
std::filesystem::path executable_path();
std::filesystem::path library_folder(const void* address_inside);
// Finds a program of dtrain: in ../bin of the library's folder, or beside the running program. SystemError if it is in
// neither.
std::filesystem::path find_program_beside(const void* address_inside_library, const std::string& name);

}  // namespace dtrain
