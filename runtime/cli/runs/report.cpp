#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "commands.h"
#include "dtrain/analysis/report.h"
#include "dtrain/run/run_folder.h"
#include "runs/run_command.h"

namespace dtrain::cli {
namespace {

struct ReportArguments {
  std::string run;
  std::string output;
};

}  // namespace

void add_report(CLI::App& app, int* exit_code) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command = app.add_subcommand("report", "Write the report of a run: one HTML file that opens offline");
  add_run(*command, arguments->run);
  command->add_option("-o,--output", arguments->output, "Where to write it (default: report.html in the run's folder)")
      ->type_name("FILE");
  command->footer(
      "Every run writes its report at its end. This command writes it again, also for a run that is in progress or\n"
      "whose folder came from another machine. docs/report.md describes the contents.");
  command->callback([arguments, exit_code] {
    const auto folder = run::find_run(arguments->run).path;
    const auto file =
        arguments->output.empty() ? folder / analysis::kReportFile : std::filesystem::path(arguments->output);
    analysis::write_report(folder, file);
    std::printf("%s\n", file.c_str());
    *exit_code = 0;
  });
}

}  // namespace dtrain::cli
