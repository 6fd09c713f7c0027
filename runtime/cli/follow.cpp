#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/config/tracking.h"
#include "dtrain/launcher/follow.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::cli {
namespace {

constexpr const char* kFollowFooter =
    R"(One process reads the run's folder and sends what it finds: one run there, whatever ranks, hosts, restarts and
continuations it has here. It follows a run that trains until the end, and sends one that has ended at once. It keeps
its position in the run's folder (follow/), so each point is there once: after a cut of the connection, after a kill
of this command, and where batches were done again. Where the server is away, what is left waits in the folder.

  training      train/loss, train/learning_rate, ...; the step is the batch
  validation    validation/accuracy, ...
  system        of each host every 10 seconds: cores, memory, GPUs, disk, network
  the rest      hyperparameters as params (config), labels as tags, the state at the end

The tool is a library of Python: pip install mlflow, wandb or trackio into the Python that is found as for scripts
(DTRAIN_PYTHON, VIRTUAL_ENV, python3). Keys and passwords come from the tool's own variables or files. An experiment
with `tracking: [mlflow: http://host:5000]` starts this command itself. docs/trackers.md describes all of it.

for example:
  dtrain follow 7 --to mlflow --url http://host:5000     until run 7 has ended
  dtrain follow 7 --to trackio                           to the trackio of this machine; `trackio show` shows it
  WANDB_MODE=offline dtrain follow 7 --to wandb          into ./wandb; `wandb sync` sends it later
  for run in runs/*; do dtrain follow $run --to mlflow --once; done

)";

struct FollowArguments {
  std::string run;
  config::TrackerTool tool = config::TrackerTool::kMlflow;
  std::string address;
  std::string project;
  bool once = false;
  double patience_s = 600;
};

// Becomes the process in Python, so that signals and the exit code are its own.
[[noreturn]] void become(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::fflush(nullptr);
  ::execv(words.front(), words.data());
  throw SystemError("cannot start " + command.front(), errno);
}

}  // namespace

void add_follow(CLI::App& app, ExitCode*) {
  auto arguments = std::make_shared<FollowArguments>();
  CLI::App* command =
      app.add_subcommand("follow", "Show a run in MLflow, W&B or trackio, while it trains or afterwards");
  add_run(*command, arguments->run);
  const std::vector<std::string> words = config::words_of(config::kTrackerTools);
  command
      ->add_option_function<std::string>(
          "--to",
          [arguments](const std::string& word) { arguments->tool = config::meaning_of(config::kTrackerTools, word); },
          "The tracker")
      ->required()
      ->check(CLI::IsMember(words));
  command
      ->add_option("--url", arguments->address,
                   "The address of its server (for trackio also a Space: user/name); default: as the tool's own "
                   "settings say, such as MLFLOW_TRACKING_URI, WANDB_BASE_URL, TRACKIO_SERVER_URL")
      ->type_name("ADDRESS");
  command
      ->add_option("--project", arguments->project,
                   "MLflow's experiment, the project of W&B and trackio; default: as the tool's variables say "
                   "(MLFLOW_EXPERIMENT_NAME, WANDB_PROJECT, TRACKIO_PROJECT), else the experiment's name")
      ->type_name("NAME");
  command->add_flag("--once", arguments->once, "Send what is there now, and do not wait for more");
  command
      ->add_option("--patience", arguments->patience_s,
                   "For how many seconds to try again after the run has ended while the server is away")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->footer(kFollowFooter + exit_codes_help({ExitCode::kDone, ExitCode::kRunFailed, ExitCode::kBadInput}));
  command->callback([arguments] {
    const std::string why = config::why_no_address(arguments->tool, arguments->address);
    if (!why.empty()) throw ConfigError("--url " + why);
    launcher::FollowRequest request{.run = rank::find_run(arguments->run).path,
                                    .tracker = {arguments->tool, arguments->address},
                                    .options = {"--patience", std::to_string(arguments->patience_s)}};
    if (!arguments->project.empty()) request.options.insert(request.options.end(), {"--project=" + arguments->project});
    if (arguments->once) request.options.emplace_back("--once");
    become(launcher::follow_command(request, rank::process_variables()));
  });
}

}  // namespace dtrain::cli
