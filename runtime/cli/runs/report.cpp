#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "dtrain/analysis/report.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/rank/run_folder.h"
#include "runs/run_command.h"

namespace dtrain::cli {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::vector<std::string> runs;
  std::string output;
};

std::vector<run::RunFolder> different_runs(const std::vector<std::string>& names) {
  std::vector<run::RunFolder> folders;
  for (const std::string& name : names) {
    const run::RunFolder folder = run::find_run(name);
    const auto same = [&](const run::RunFolder& other) { return fs::equivalent(folder.path, other.path); };
    if (std::any_of(folders.begin(), folders.end(), same)) {
      throw ConfigError(name + ": the run " + folder.path.string() + " is named twice", "name each run once");
    }
    folders.push_back(folder);
  }
  return folders;
}

void write_report_of(const std::vector<run::RunFolder>& folders, const fs::path& file) {
  if (folders.size() == 1) return analysis::write_report(folders.front().path, file);
  const SystemClock clock;
  std::vector<analysis::ListedRun> runs;
  for (const run::RunFolder& folder : folders) runs.push_back(list_run(folder, clock));
  analysis::write_comparison(runs, file);
}

}  // namespace

void add_report(CLI::App& app, ExitCode*) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command =
      app.add_subcommand("report", "Write the report of a run, or compare runs: one HTML file that opens offline");
  add_runs(*command, arguments->runs);
  command
      ->add_option("-o,--output", arguments->output,
                   "Where to write it (default: report.html, in the run's folder; of several runs, in this folder)")
      ->type_name("FILE");
  command->footer(
      "Every run writes its report at its end. This command writes it again, also for a run that is in progress or\n"
      "whose folder came from another machine. Of several runs it writes one page: their curves of learning laid over\n"
      "each other, and what of their experiments differs. docs/report.md describes the contents.");
  command->callback([arguments] {
    const std::vector<run::RunFolder> folders = different_runs(arguments->runs);
    const fs::path folder = folders.size() == 1 ? folders.front().path : fs::path();
    const fs::path file = arguments->output.empty() ? folder / analysis::kReportFile : fs::path(arguments->output);
    write_report_of(folders, file);
    std::printf("%s\n", file.c_str());
  });
}

}  // namespace dtrain::cli
