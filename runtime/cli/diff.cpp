#include <unistd.h>

#include <memory>

#include "commands.h"
#include "dtrain/analysis/diff.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/launcher/summary_text.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::cli {
namespace {

struct DiffArguments {
  std::string a, b;
  std::optional<std::string> fail_above;
  bool json = false;
};

constexpr const char* kFooter =
    R"(Compares the median batch, throughput, each phase, exposed communication, peak memory and the rules that
trigger, and shows how the plans differ. A difference is a change only if it exceeds the noise of the batches:
its whole 99% interval, from a block bootstrap over the batches, must lie beyond 1%. The warm-up (a tenth of the
steps, at least 5, at most 100), validation and checkpoints are left out. Runs with different world sizes or
batches are compared by their throughput.

The test sees the variation within the runs, but not that the machine was slower on another day: make the runs
one directly after the other, or in turns, and repeat a comparison that matters (docs/diff.md).

exit codes: 0 compared; 1 a run has no batches, or dumps of ranks are missing; 2 wrong use, or too few batches
for --fail-above; 3 a regression: B's median batch is longer, or its throughput lower, by at least PERCENT, and
that is a change as defined above

for example:
  dtrain diff 7 8                              what differs in run 0008 from run 0007?
  dtrain diff baseline . --fail-above 5%       in a build: fails if B is worse by 5% or more
  dtrain diff 7 8 --json | jq .step.interval   for programs)";

// "5%", "5", "0.5%" as a share.
double to_share(const std::string& text) {
  const double value = to_number<double>(text.substr(0, text.size() - (text.ends_with('%') ? 1 : 0))).value_or(0);
  constexpr double kMost = 1000;
  if (!(value > 0 && value <= kMost)) {
    throw ConfigError("--fail-above: '" + text + "' is not a percentage above 0 and up to 1000",
                      "write 5% or 5 for five per cent");
  }
  return value / 100;
}

analysis::RunProfile load(const char* which, const std::string& run) {
  try {
    return analysis::load_run(rank::find_run(run).path);
  } catch (const ConfigError& error) {
    throw ConfigError(std::string(which) + ": " + error.what(), error.remedy());
  }
}

}  // namespace

void add_diff(CLI::App& app, ExitCode* exit_code) {
  auto arguments = std::make_shared<DiffArguments>();
  CLI::App* command = app.add_subcommand("diff", "Compare two runs, and distinguish a change from noise");
  constexpr const char* kRun = "a path, a number (3 or run:3) or name under ./runs, or its task (task:127)";
  command->add_option("A", arguments->a, std::string("The run before: ") + kRun)->type_name("RUN")->required();
  command->add_option("B", arguments->b, std::string("The run after: ") + kRun)->type_name("RUN")->required();
  command
      ->add_option("--fail-above", arguments->fail_above,
                   "End with exit code 3 if B is worse by this much or more, such as 5%")
      ->type_name("PERCENT");
  add_json(*command, arguments->json);
  command->footer(kFooter);
  command->callback([arguments, exit_code] {
    analysis::DiffOptions options;
    if (arguments->fail_above) options.fail_above = to_share(*arguments->fail_above);
    const analysis::RunProfile a = load("A", arguments->a);
    const analysis::RunProfile b = load("B", arguments->b);
    if (std::filesystem::equivalent(a.folder, b.folder)) {
      throw ConfigError("A and B are the same run: " + a.folder.string(), "name the run before and the run after");
    }
    const analysis::RunDiff diff = analysis::diff_runs(a, b, options);
    print_answer(
        arguments->json, [&] { return analysis::to_json(diff); },
        [&] { return analysis::render_diff(diff, launcher::text_options(STDOUT_FILENO)); });
    *exit_code = diff.regression ? ExitCode::kRegression : ExitCode::kDone;
  });
}

}  // namespace dtrain::cli
