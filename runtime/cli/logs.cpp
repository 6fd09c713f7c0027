#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/rank/screen.h"

namespace dtrain::cli {
namespace {

namespace fs = std::filesystem;

struct LogsArguments {
  std::string run;
  int rank = -1;
  bool follow = false, raw = false;
};

// Returns the rank of "rank-0001.log", or -1.
int rank_of(const fs::path& file) {
  int rank = -1;
  char rest = 0;
  return std::sscanf(file.filename().c_str(), "rank-%d.lo%c", &rank, &rest) == 2 && rest == 'g' ? rank : -1;
}

std::map<int, fs::path> find_logs(const rank::RunFolder& folder) {
  std::map<int, fs::path> logs;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder.logs(), code)) {
    if (const int rank = rank_of(entry.path()); rank >= 0) logs[rank] = entry.path();
  }
  return logs;
}

void show(const LogsArguments& arguments) {
  constexpr auto kPollPeriod = std::chrono::milliseconds(100);
  const rank::RunFolder folder = rank::find_run(arguments.run);
  rank::LogTail tail;
  std::map<int, fs::path> known;
  const auto look_for_logs = [&] {
    for (const auto& [rank, path] : find_logs(folder)) {
      if ((arguments.rank < 0 || rank == arguments.rank) && known.emplace(rank, path).second) tail.add(rank, path);
    }
  };
  bool raw_ok = true;
  const auto print = [&](int rank, std::string_view line) {
    std::string text = arguments.rank < 0 ? rank::rank_prefix(rank) : "";
    text.append(line).append("\n");
    if (arguments.raw) {
      raw_ok = raw_ok && write_all(STDOUT_FILENO, text) == text.size();
    } else {
      std::fwrite(text.data(), 1, text.size(), stdout);
    }
  };
  look_for_logs();
  while (arguments.follow) {
    const bool over = rank::is_over(folder);  // read first, so that what was written before is shown
    look_for_logs();
    tail.poll(print);
    const bool written = raw_ok && std::fflush(stdout) == 0;
    if (over || !written) break;
    std::this_thread::sleep_for(kPollPeriod);
  }
  if (known.empty()) {
    const std::string which = arguments.rank < 0 ? "no log" : "no log of rank " + std::to_string(arguments.rank);
    std::string ranks;
    for (const auto& [rank, path] : find_logs(folder)) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    throw ConfigError(which + " in " + folder.logs().string(), ranks.empty() ? "" : "there are logs of rank " + ranks);
  }
  tail.finish(print);
  if (!raw_ok) throw SystemError("not everything could be written to standard output", errno);
}

}  // namespace

void add_logs(CLI::App& app, ExitCode*) {
  auto arguments = std::make_shared<LogsArguments>();
  CLI::App* command = app.add_subcommand("logs", "Show what the ranks of a run printed");
  add_run(*command, arguments->run);
  command->add_option("--rank", arguments->rank, "Only this rank, without the [rank=N] prefix")
      ->check(CLI::Range(0, 1'000'000));
  command->add_flag("--raw", arguments->raw,
                    "The bytes as they are; otherwise control characters are shown as \\u001b");
  command->add_flag("-f,--follow", arguments->follow, "Print new lines until the run has ended");
  command->callback([arguments] { show(*arguments); });
}

}  // namespace dtrain::cli
