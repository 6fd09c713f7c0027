#include "standard_output.h"

#include <cerrno>
#include <cstdio>
#include <optional>
#include <string>
#include <system_error>

#include <poll.h>
#include <unistd.h>

namespace dtrain::cli {
namespace {

// stdio drops output that it could not write, and with the output the reason.
bool reader_has_gone() {
  pollfd output{STDOUT_FILENO, 0, 0};
  return ::poll(&output, 1, 0) == 1 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

// Returns the reason why output was lost; empty: everything was written, or no reader is left.
std::optional<std::string> why_output_was_lost() {
  const bool failed_before = std::ferror(stdout) != 0;
  const int code = std::fflush(stdout) == 0 ? 0 : errno;
  if (code == 0 && !failed_before) return std::nullopt;
  std::clearerr(stdout);
  if (code == EPIPE || reader_has_gone()) return std::nullopt;
  const std::string reason = code == 0 ? "" : ": " + std::generic_category().message(code);
  return "not everything could be written to standard output" + reason;
}

}  // namespace

ExitCode finish_output(ExitCode exit_code) {
  const auto lost = why_output_was_lost();
  if (!lost) return exit_code;
  std::fprintf(stderr, "dtrain: %s\n  free disk space there, or redirect the output\n", lost->c_str());
  return exit_code == ExitCode::kDone ? ExitCode::kRunFailed : exit_code;
}

void warn_of_lost_output() {
  if (const auto lost = why_output_was_lost()) std::fprintf(stderr, "dtrain: warning: %s\n", lost->c_str());
}

}  // namespace dtrain::cli
