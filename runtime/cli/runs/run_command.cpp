#include "runs/run_command.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>

#include "dtrain/rank/run_folder.h"

namespace dtrain::cli {
namespace {

namespace fs = std::filesystem;

// Returns the seconds since the run's files were last written to.
double quiet_s(const run::RunFolder& folder) {
  std::error_code code;
  auto latest = fs::file_time_type::min();
  const auto look_at = [&](const fs::path& path) {
    const auto time = fs::last_write_time(path, code);
    if (!code) latest = std::max(latest, time);
  };
  look_at(folder.events());
  look_at(folder.metrics());
  for (const auto& entry : fs::directory_iterator(folder.profile(), code)) look_at(entry.path());
  if (latest == fs::file_time_type::min()) return std::numeric_limits<double>::infinity();
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - latest).count();
}

}  // namespace

CLI::Option* add_run(CLI::App& command, std::string& run) {
  return command
      .add_option("RUN", run, "The run: a path, a number (3 or run:3) or name under ./runs, or its task (task:127)")
      ->required();
}

CLI::Option* add_runs(CLI::App& command, std::vector<std::string>& runs) {
  return command
      .add_option("RUN", runs,
                  "The runs, each one: a path, a number (3 or run:3) or name under ./runs, or its task "
                  "(task:127)")
      ->required();
}

CLI::Option* add_json(CLI::App& command, bool& json) {
  return command.add_flag("--json", json, "As JSON");
}

analysis::ListedRun list_run(const run::RunFolder& folder, const Clock& clock) {
  const bool gone = run::is_over(folder) && quiet_s(folder) > kQuietS;
  return analysis::read_listed_run(folder.path, gone ? std::nullopt : std::optional(to_seconds(clock.wall())));
}

void print_answer(bool json, const std::function<Json()>& for_programs,
                  const std::function<std::string()>& for_people) {
  const std::string text = json ? to_line(for_programs()) + "\n" : for_people();
  std::fputs(text.c_str(), stdout);
}

}  // namespace dtrain::cli
