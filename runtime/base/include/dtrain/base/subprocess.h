// Starts and watches other processes, sets up those that run in the background, and finds and opens programs and
// libraries of dtrain.
#pragma once

#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <pthread.h>
#include <sys/types.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

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
  bool in_background = false;     // at a lower priority, if the process may take this one's priority again
  bool ends_with_parent = false;  // SIGKILL when the thread that starts it ends
};

// A child process. The destructor kills it (SIGKILL to its group) and reaps it, so no orphan and no zombie is left. If
// it ends by itself, wait() kills the processes that are left in its group. One thread at a time.
class Process {
 public:
  // SystemError if the program cannot be started; it names the program and the reason.
  static Process start(const ProcessOptions& options);
  // Takes over a child of this process that leads its own process group. SystemError: it is no such child.
  static Process adopt(pid_t pid);
  Process(Process&&) noexcept;
  Process& operator=(Process other) noexcept;
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

// Returns the variables ("NAME=value") that a process with these options starts with.
std::vector<std::string> environment_of(const ProcessOptions& options);

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

// While this object lives, the calling thread receives no signals. Threads and processes that it starts receive none
// either: they inherit its mask of blocked signals.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals& operator=(BlockedSignals&&) = delete;

 private:
  sigset_t before_{};
};

// The next two functions set up the processes that run beside the ranks (the monitor, the saver).

// Ignores SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGPIPE, because this process finishes its work and ends after the
// ranks. It should lead a process group but no session: Linux may share the cores evenly between sessions (autogroup).
// In a session of its own, such a process got 2% of a core beside busy ranks (Linux 6.18).
void ignore_polite_ends();
// Appends the standard output and error to `log`, or discards them if `log` is empty or cannot be opened. So a reader
// of the starter's output does not wait for this process to end. Standard input becomes empty.
void redirect_output(const std::filesystem::path& log);

// A module: a library of dtrain with dependencies that a machine may lack. dtrain runs without it. Any thread may open
// one.
struct ModuleFile {
  std::string name;                // "dtrain_comm_mpi": lib<name>.so beside a library of dtrain
  std::vector<std::string> needs;  // foreign libraries, opened first with RTLD_GLOBAL ("libmpi.so.40")
  std::string factory;             // the one function it exports
  std::string what;                // for errors: "the mpi backend"
  std::string remedy_needs;        // if one of `needs` is missing: "install Open MPI 4.1 (Debian: openmpi-bin)"
  std::string remedy_module;       // if the module is missing
};

// If `factory` is null, `why` and `remedy` describe the file that cannot be opened.
struct OpenedModule {
  void* factory = nullptr;
  std::string why;
  std::string remedy;
};
OpenedModule try_open_module(const ModuleFile& file);

// Returns the address of the module's factory. The module is never closed. The error, of a type of error.h, names the
// file that cannot be opened, and the reason.
template <class ErrorType>
void* open_module(const ModuleFile& file) {
  const OpenedModule opened = try_open_module(file);
  if (!opened.factory) throw ErrorType(opened.why, opened.remedy);
  return opened.factory;
}

}  // namespace dtrain
