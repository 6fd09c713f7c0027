#include <memory>
#include <string>

#include <unistd.h>

#include "commands.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/launcher/summary_text.h"
#include "dtrain/rank/run_folder.h"
#include "runs/run_command.h"

namespace dtrain::cli {
namespace {

struct SummaryArguments {
  std::string run;
  bool json = false;
};

}  // namespace

void add_summary(CLI::App& app, ExitCode*) {
  auto arguments = std::make_shared<SummaryArguments>();
  CLI::App* command = app.add_subcommand("summary", "Show where the time of a run went");
  add_run(*command, arguments->run);
  add_json(*command, arguments->json);
  command->callback([arguments] {
    const auto folder = run::find_run(arguments->run).path;
    print_answer(
        arguments->json, [&] { return analysis::to_json(analysis::summarize(folder)); },
        [&] { return run::summary_text(folder, STDOUT_FILENO); });
  });
}

}  // namespace dtrain::cli
