#include "folder/log_redirect.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <iostream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/run/log_tail.h"

namespace dtrain::run {
namespace {
constexpr auto kCopyPeriod = std::chrono::milliseconds(50);

void flush_streams() {
  std::cout.flush();
  std::fflush(nullptr);
}
}  // namespace

LogRedirect::LogRedirect(const std::filesystem::path& log, int rank, std::string prefix, bool terminal,
                         const Clock& clock)
    : log_(log), output_(duplicate(STDOUT_FILENO)), error_(duplicate(STDERR_FILENO)) {
  const UniqueFd file(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file) throw SystemError("cannot write the log " + log.string(), errno);
  screen_ = std::make_unique<Screen>(output_.get(), terminal && ::isatty(output_.get()), clock);
  std::signal(SIGPIPE, SIG_IGN);  // training goes on if the screen can no longer be written
  flush_streams();
  ::dup2(file.get(), STDOUT_FILENO);
  ::dup2(file.get(), STDERR_FILENO);
  // Whole lines, in the order in which they are printed: C's standard output to a file would be buffered in blocks.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  thread_ = std::thread([this, log, rank, prefix = std::move(prefix)] {
    LogTail tail;
    tail.add(rank, log);
    const auto show = [&](int, std::string_view line) { screen_->line(prefix + std::string(line)); };
    while (!stop_) {
      tail.poll(show);
      std::this_thread::sleep_for(kCopyPeriod);
    }
    tail.finish(show);
  });
}

LogRedirect::~LogRedirect() {
  stop_copying();
  ::dup2(output_.get(), STDOUT_FILENO);
  ::dup2(error_.get(), STDERR_FILENO);
  end_torn_line(log_);
}

void LogRedirect::stop_copying() {
  flush_streams();
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void LogRedirect::original_error(std::string_view text) const {
  write_all(error_.get(), text);
}
void LogRedirect::original_output(std::string_view text) const {
  write_all(output_.get(), text);
}

}  // namespace dtrain::run
