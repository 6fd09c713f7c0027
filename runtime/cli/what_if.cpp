#include <memory>
#include <string>

#include <unistd.h>

#include "commands.h"
#include "dtrain/analysis/analysis_text.h"
#include "dtrain/run/run_folder.h"
#include "dtrain/run/summary_text.h"
#include "run_command.h"

namespace dtrain::cli {
namespace {

struct Arguments {
  std::string run;
  bool json = false;
};

}  // namespace

void add_what_if(CLI::App& app, int* exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("what-if", "Predict what changes would bring to a run: data, network, balance, more ranks");
  add_run(*command, arguments->run);
  add_json(*command, arguments->json);
  command->footer("docs/profiling.md says how each number is predicted.");
  command->callback([arguments, exit_code] {
    const auto profile = analysis::load_run(run::find_run(arguments->run).path);
    const analysis::Analysis analysis = analysis::analyze(profile);
    print_answer(
        arguments->json, [&] { return analysis::to_json(analysis.what_if); },
        [&] { return analysis::render_what_if(analysis, run::text_options(STDOUT_FILENO)); });
    *exit_code = 0;
  });
}

}  // namespace dtrain::cli
