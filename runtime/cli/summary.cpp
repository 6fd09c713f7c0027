#include <cstdio>
#include <memory>
#include <string>

#include <unistd.h>

#include "commands.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/run/run_folder.h"
#include "dtrain/run/summary_text.h"

namespace dtrain::cli {
namespace {

struct Arguments {
  std::string run;
  bool json = false;
};

}  // namespace

void add_summary(CLI::App& app, int* exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("summary", "Say where the time of a run went");
  command->add_option("RUN", arguments->run, "The run: a path, or a number or name under ./runs")->required();
  command->add_flag("--json", arguments->json, "As JSON");
  command->callback([arguments, exit_code] {
    const auto folder = run::find_run(arguments->run).path;
    const std::string text = arguments->json ? to_line(analysis::to_json(analysis::summarize(folder))) + "\n"
                                             : run::summary_text(folder, STDOUT_FILENO);
    std::fputs(text.c_str(), stdout);
    *exit_code = 0;
  });
}

}  // namespace dtrain::cli
