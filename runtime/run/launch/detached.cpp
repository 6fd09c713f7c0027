#include "launch/detached.h"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/run/log_tail.h"

namespace dtrain::run {
namespace {

constexpr std::size_t kDetachedLines = 15;

void put(int from, int to) {
  if (::dup2(from, to) < 0) throw SystemError("cannot redirect descriptor " + std::to_string(to), errno);
}

}  // namespace

Detached::Detached(const std::filesystem::path& log) : log_(log) {
  const UniqueFd output(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!output) throw SystemError("cannot write the log " + log.string(), errno);
  const UniqueFd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("cannot make a pipe", errno);
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  child_ = ::fork();
  if (child_ < 0) throw SystemError("cannot start the launcher in the background", errno);
  if (child_ > 0) {
    word_ = std::move(reader);
    return;
  }
  word_ = std::move(writer);
  ::setsid();  // cannot fail: a new process leads no process group
  put(input.get(), STDIN_FILENO);
  put(output.get(), STDOUT_FILENO);
  put(output.get(), STDERR_FILENO);
}

void Detached::tell(const std::string& word) {
  write_all(word_.get(), word);
  word_.reset();
}

std::string Detached::hear() {
  std::string word;
  char buffer[512];
  ssize_t count = 0;
  while ((count = ::read(word_.get(), buffer, sizeof buffer)) > 0 || (count < 0 && errno == EINTR)) {
    if (count > 0) word.append(buffer, static_cast<std::size_t>(count));
  }
  if (!word.empty()) return word;
  std::string said;
  for (const std::string& line : last_lines(log_, kDetachedLines)) said += (said.empty() ? "" : "\n  ") + line;
  throw Error("the launcher in the background ended before its task was in the ledger",
              "the end of its log:\n  " + said);
}

}  // namespace dtrain::run
