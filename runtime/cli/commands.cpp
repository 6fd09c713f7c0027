#include "commands.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <system_error>

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

CLI::Option* add_run(CLI::App& command, std::string& run) {
  return command
      .add_option("RUN", run, "The run: a path, a number (3 or run:3) or name under ./runs, or its task (task:127)")
      ->required();
}

CLI::Option* add_runs(CLI::App& command, std::vector<std::string>& runs) {
  return command
      .add_option("RUN", runs,
                  "The runs, each one: a path, a number (3 or run:3) or name under ./runs, or its task (task:127)")
      ->required();
}

CLI::Option* add_json(CLI::App& command, bool& json) {
  return command.add_flag("--json", json, "As JSON");
}

void print_answer(bool json, const std::function<Json()>& for_programs,
                  const std::function<std::string()>& for_people) {
  const std::string text = json ? to_line(for_programs()) + "\n" : for_people();
  std::fputs(text.c_str(), stdout);
}

}  // namespace dtrain::cli
