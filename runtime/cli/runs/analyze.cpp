#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "commands.h"
#include "dtrain/analysis/analysis.h"
#include "dtrain/config/profiling_rules.h"
#include "dtrain/launcher/summary_text.h"
#include "dtrain/rank/run_folder.h"
#include "runs/run_command.h"

namespace dtrain::cli {
namespace {

struct AnalyzeArguments {
  std::string run;
  bool json = false;
  std::vector<std::string> rules;
};

}  // namespace

void add_analyze(CLI::App& app, ExitCode*) {
  auto arguments = std::make_shared<AnalyzeArguments>();
  CLI::App* command =
      app.add_subcommand("analyze", "Show what to change in a run, what each change would gain, and the evidence");
  add_run(*command, arguments->run);
  add_json(*command, arguments->json);
  command
      ->add_option("--rule", arguments->rules,
                   "A rule's parameter for this analysis: --rule StepOutlier.stddev=4 (docs/rules.md; repeatable)")
      ->type_name("NAME.PARAMETER=VALUE")
      ->expected(1)
      ->take_all();
  command->footer(
      "Reads only the run's folder, so it works on any machine. Shows findings, the most expensive first; the\n"
      "waterfall from the ideal throughput to the measured one; classic and robust statistics of the steps; which\n"
      "ranks the others waited for, and why. docs/profiling.md describes how each number is computed.");
  command->callback([arguments] {
    const auto profile = analysis::load_run(run::find_run(arguments->run).path);
    analysis::AnalyzeOptions options;
    std::optional<config::ProfilingRules> rules;
    if (!arguments->rules.empty()) {
      options.rules = &rules.emplace(config::override_rules(analysis::rules_of(profile), arguments->rules));
    }
    const analysis::Analysis analysis = analysis::analyze(profile, options);
    print_answer(
        arguments->json, [&] { return analysis::to_json(analysis); },
        [&] { return analysis::render_analysis(analysis, run::text_options(STDOUT_FILENO)); });
  });
}

}  // namespace dtrain::cli
