// The limits that the operating system sets to this process, in the words of an error: which one applies, its value,
// and what to do. Any thread may call.
#pragma once

#include <exception>
#include <functional>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace dtrain {

// After fork() or the start of a thread has failed with EAGAIN: "RLIMIT_NPROC lets this user have 40 processes and …".
// It names pids.max of a cgroup that has so many.
std::string limit_of_processes();
// After fork() has failed with `code`; empty: no limit is known to be the reason.
std::string limit_of_fork(int code);
// After a write has failed with EFBIG.
std::string limit_of_file_size();
// After memory could not be had: RLIMIT_AS, RLIMIT_DATA, or what the machine has left.
std::string limit_of_memory();

// True for std::bad_alloc and for the std::system_error of a thread that could not be started.
bool is_limit_error(const std::exception& error);

// Prepares a process of dtrain for its limits. A write beyond RLIMIT_FSIZE fails with EFBIG in place of killing the
// process, unless the program handles SIGXFSZ itself. If an exception for which is_limit_error() is true leaves a
// thread, `report` (empty: prints one line on standard error) gets it, and the process ends with exit code 1; for any
// other exception the process ends as it did without this call.
void prepare_for_limits(std::function<void(const std::exception&)> report = {});

[[noreturn]] void end_by_limit(const std::exception& error);       // as prepare_for_limits() says
[[noreturn]] void refuse_thread(const std::string& of, int code);  // SystemError

// Starts a thread. `of` says whose it is, for the SystemError if it cannot be started: "the thread of <of>". If an
// exception for which is_limit_error() is true leaves `run`, the process ends as prepare_for_limits() says.
template <typename Run>
std::thread start_thread(const std::string& of, Run&& run) {
  try {
    return std::thread([run = std::forward<Run>(run)]() mutable {
      try {
        run();
      } catch (const std::bad_alloc& error) {
        end_by_limit(error);
      } catch (const std::system_error& error) {
        if (!is_limit_error(error)) throw;
        end_by_limit(error);
      }
    });
  } catch (const std::system_error& error) {
    refuse_thread(of, error.code().value());
  }
}

}  // namespace dtrain
