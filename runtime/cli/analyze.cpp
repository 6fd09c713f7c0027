#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/base/error.h"
#include "dtrain/config/profiling.h"
#include "dtrain/launcher/summary_text.h"
#include "dtrain/launcher/verify.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::cli {
namespace {

struct SummaryArguments {
  std::string run;
  bool json = false;
};

struct AnalyzeArguments {
  std::string run;
  bool json = false;
  std::vector<std::string> rules;
};

constexpr int kFewestSteps = 20;
constexpr int kMostRounds = 100;
constexpr int kMostPredictedSteps = 10'000;  // a dump has so many steps in full

struct WhatIfArguments {
  std::string run;
  bool json = false;
  bool verify = false;
  int steps = 0;
  int rounds = launcher::VerifyRequest().rounds;
  std::string cluster;
};

// Returns exit codes as `dtrain launch` does.
ExitCode verify(const WhatIfArguments& arguments) {
  const auto tell = [](const std::string& what) { std::fprintf(stderr, "dtrain: %s\n", what.c_str()); };
  const auto verification =
      launcher::verify({rank::find_run(arguments.run), arguments.steps, arguments.rounds, arguments.cluster}, tell);
  if (!verification) {
    tell("interrupted");
    return ExitCode::kInterrupted;
  }
  print_answer(
      arguments.json, [&] { return launcher::to_json(*verification); },
      [&] { return launcher::verification_text(*verification); });
  return ExitCode::kDone;
}

}  // namespace

void add_summary(CLI::App& app, ExitCode*) {
  auto arguments = std::make_shared<SummaryArguments>();
  CLI::App* command = app.add_subcommand("summary", "Show where the time of a run went");
  add_run(*command, arguments->run);
  add_json(*command, arguments->json);
  command->callback([arguments] {
    const auto folder = rank::find_run(arguments->run).path;
    print_answer(
        arguments->json, [&] { return analysis::to_json(analysis::summarize(folder)); },
        [&] { return launcher::summary_text(folder, STDOUT_FILENO); });
  });
}

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
    const auto profile = analysis::load_run(rank::find_run(arguments->run).path);
    analysis::AnalyzeOptions options;
    std::optional<config::ProfilingRules> rules;
    if (!arguments->rules.empty()) {
      options.rules = &rules.emplace(config::override_rules(analysis::rules_of(profile), arguments->rules));
    }
    const analysis::Analysis analysis = analysis::analyze(profile, options);
    print_answer(
        arguments->json, [&] { return analysis::to_json(analysis); },
        [&] { return analysis::render_analysis(analysis, launcher::text_options(STDOUT_FILENO)); });
  });
}

void add_what_if(CLI::App& app, ExitCode* exit_code) {
  auto arguments = std::make_shared<WhatIfArguments>();
  CLI::App* command =
      app.add_subcommand("what-if", "Predict how changes would affect a run: data, network, balance, more ranks");
  add_run(*command, arguments->run);
  add_json(*command, arguments->json);
  CLI::Option* verifying = command->add_flag(
      "--verify", arguments->verify,
      "Start short runs of the experiment as it is, with --mock, and with keys set, and compare the predictions with "
      "them");
  command
      ->add_option("--steps", arguments->steps,
                   "With --verify: the number of steps of each run (default: three seconds of steps, 100 to 2000)")
      ->check(CLI::Range(kFewestSteps, kMostPredictedSteps))
      ->needs(verifying);
  command
      ->add_option("--rounds", arguments->rounds,
                   "With --verify: how often each kind of changed run is started (default: 3)")
      ->check(CLI::Range(1, kMostRounds))
      ->needs(verifying);
  command
      ->add_option(
          "--cluster", arguments->cluster,
          "With --verify: the cluster, as for dtrain launch (default: the file that the run was launched with)")
      ->type_name("FILE")
      ->needs(verifying);
  command->footer(
      "docs/profiling.md describes how each number is predicted. By default --verify starts 25 runs (13 if the run\n"
      "has one rank) and 6 more for each key that a prediction sets, one after the other, and keeps them in "
      "RUN/what-if/N.\n\n" +
      exit_codes_help({ExitCode::kDone, ExitCode::kRunFailed, ExitCode::kBadInput, ExitCode::kInterrupted}));
  command->callback([arguments, exit_code] {
    if (arguments->verify) {
      *exit_code = verify(*arguments);
      return;
    }
    const auto profile = analysis::load_run(rank::find_run(arguments->run).path);
    const analysis::Analysis analysis = analysis::analyze(profile);
    print_answer(
        arguments->json, [&] { return analysis::to_json(analysis.what_if); },
        [&] { return analysis::render_what_if(analysis, launcher::text_options(STDOUT_FILENO)); });
  });
}

}  // namespace dtrain::cli
