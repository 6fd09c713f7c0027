#include "dtrain/launcher/launch.h"

#include <memory>

#include "commands.h"
#include "exit_codes.h"
#include "standard_output.h"

namespace dtrain::cli {

void add_launch(CLI::App& app, ExitCode* exit_code) {
  auto request = std::make_shared<run::LaunchRequest>();
  CLI::App* command =
      app.add_subcommand("launch", "Train what an experiment file describes, on this machine or a cluster");
  CLI::Option* experiment =
      command->add_option("EXPERIMENT", request->experiment_file, "The experiment file (YAML); not with --continue");
  CLI::Option* continues =
      command
          ->add_option(
              "--continue", request->continue_run,
              "Go on with a run in its own folder, from its newest checkpoint that is whole, with the experiment "
              "and the overrides that it was started with; --set changes them. The run: a path (also of a copy), "
              "a number (3 or run:3) or name under ./runs, or its task (task:127)")
          ->type_name("RUN")
          ->excludes(experiment);
  command
      ->add_option("--set", request->overrides,
                   "Override one key of the file: --set searcher.max_length.epochs=1 (values are YAML; repeatable)")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  command
      ->add_option(
          "--cluster", request->cluster,
          "The cluster: a cluster file (YAML) or a hostfile of MPI (default: the first that exists of "
          "$DTRAIN_CLUSTER, ./cluster.yaml, ~/.config/dtrain/cluster.yaml, the Slurm allocation, this machine)")
      ->type_name("FILE");
  command->add_option("--run-dir", request->run_dir, "The folder of the run (default: the next number under runs/)")
      ->type_name("DIR")
      ->excludes(continues);
  command->add_flag("--trial", request->is_trial)->group("");       // for slots_per_trial: auto: see LaunchRequest
  command->add_option("--contents", request->contents)->group("");  // of the script of a Slurm job: see LaunchRequest
  auto mock = std::make_shared<std::vector<std::string>>();
  command
      ->add_option(
          "--mock", *mock,
          "Leave a part of the work out, to measure the rest: loader (train on the same batch again and again), "
          "train (only read batches), comm (do not exchange gradients), or loader,comm. The weights are then "
          "useless, so they are neither validated nor written")
      ->type_name("WHAT")
      ->expected(1)
      ->take_all()
      ->excludes(continues);
  CLI::Option* detach = command->add_flag(
      "--detach", request->detach, "Print the task and continue in the background, also after the terminal is closed");
  CLI::Option* dry_run =
      command->add_flag("--dry-run", request->dry_run, "Print the plan and start nothing")->excludes(detach);
  command->add_flag("--json", request->json, "With --dry-run: the plan as JSON")->needs(dry_run);
  command->footer(
      exit_codes_help(
          {ExitCode::kDone, ExitCode::kRunFailed, ExitCode::kBadInput, ExitCode::kPreempted, ExitCode::kInterrupted}) +
      "After the first Ctrl-C or SIGTERM the ranks finish their step and save a checkpoint, from which --continue\n"
      "goes on; a second one kills them.\n"
      "\n"
      "While other tasks hold the slots, the launch waits in the queue and prints which tasks these are (dtrain\n"
      "task list); resources.priority sets the order. With --detach, further output goes to logs/launcher.log in\n"
      "the run's folder.\n"
      "\n"
      "With resources.slots_per_trial: auto, the first launch tries some numbers of ranks on the cores of this "
      "machine\n"
      "with short runs, and remembers the fastest; --dry-run shows what is remembered, and tries nothing.\n"
      "\n"
      "Each slot (resources.slots_per_trial) gets one process, which is bound to the slot's cores. OMP_NUM_THREADS\n"
      "(the number of these cores) and OMP_WAIT_POLICY (passive, with GOMP_SPINCOUNT=10000) are set unless you set\n"
      "them.");
  command->callback([request, mock, exit_code] {
    if (request->experiment_file.empty() && request->continue_run.empty()) throw CLI::RequiredError("EXPERIMENT");
    request->mock = run::parse_mock(*mock);
    *exit_code = run::launch(*request);
    if (!request->dry_run) warn_of_lost_output();  // a closed output does not change how a run ended
  });
}

}  // namespace dtrain::cli
