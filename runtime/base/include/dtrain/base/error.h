// The typed errors of dtrain. Each message names the failed operation and the value; `remedy` tells the user what to
// do. Thrown by value, caught by const reference; any thread may throw them. A thread that starts another one must pass
// on that thread's exceptions.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace dtrain {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, std::string remedy = {})
      : std::runtime_error(what), remedy_(std::move(remedy)) {}
  // Returns the action that the user can take; may be empty.
  const std::string& remedy() const { return remedy_; }

 private:
  std::string remedy_;
};

// An error in the experiment, the cluster or the command line, found before any rank starts. Exit code 2.
class ConfigError : public Error {
  using Error::Error;
};
// A collective, a connection or a peer failed.
class CommError : public Error {
  using Error::Error;
};
// Data is missing, truncated or inconsistent.
class DataError : public Error {
  using Error::Error;
};
// The operating system refused something; `code` is errno.
class SystemError : public Error {
 public:
  SystemError(const std::string& what, int code, std::string remedy = {});
  int code() const { return code_; }

 private:
  int code_;
};

// Returns "outer: inner: innermost" for an exception and all those nested in it (std::throw_with_nested). If memory
// could not be had or a thread not be started, the text names the limit that applies and what to do (limits.h).
std::string describe(const std::exception& error);

// The exit codes of dtrain's processes (docs/errors.md). A program of the user's may end with another value.
enum class ExitCode : int {
  kDone = 0,
  kRunFailed = 1,
  kBadInput = 2,
  kRegression = 3,
  kPreempted = 75,  // stopped by SIGTERM, its checkpoint is durable: EX_TEMPFAIL of sysexits.h
  kInterrupted = 130
};

}  // namespace dtrain
