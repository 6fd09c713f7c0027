#include "dtrain/run/launch.h"

#include <memory>

#include "commands.h"
#include "standard_output.h"

namespace dtrain::cli {

void add_launch(CLI::App& app, int* exit_code) {
  auto request = std::make_shared<run::LaunchRequest>();
  CLI::App* command =
      app.add_subcommand("launch", "Train what an experiment file describes, on this machine or a cluster");
  command->add_option("EXPERIMENT", request->experiment_file, "The experiment file (YAML)")->required();
  command
      ->add_option("--set", request->overrides,
                   "Override one key of the file: --set searcher.max_length.epochs=1 (values are YAML; repeatable)")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  command
      ->add_option("--cluster", request->cluster,
                   "The cluster: a cluster file (YAML) or a hostfile of MPI (default: $DTRAIN_CLUSTER, ./cluster.yaml, "
                   "~/.config/dtrain/cluster.yaml, the Slurm allocation, this machine)")
      ->type_name("FILE");
  command->add_option("--run-dir", request->run_dir, "Where to write the run (default: the next folder under runs/)")
      ->type_name("DIR");
  auto mock = std::make_shared<std::vector<std::string>>();
  command
      ->add_option("--mock", *mock,
                   "Leave something out, to measure the rest: loader (train on one batch again and again), train (read "
                   "batches and do nothing with them), comm (exchange no gradients), or loader,comm. The weights mean "
                   "nothing: none are written, none validated")
      ->type_name("WHAT")
      ->expected(1)
      ->take_all();
  CLI::Option* detach = command->add_flag(
      "--detach", request->detach, "Once the task is known, go on in the background, also when the terminal is closed");
  CLI::Option* dry_run =
      command->add_flag("--dry-run", request->dry_run, "Print the plan and start nothing")->excludes(detach);
  command->add_flag("--json", request->json, "With --dry-run: the plan as JSON")->needs(dry_run);
  command->footer(
      "Exit codes: 0 done, 1 the run failed, 2 bad input (nothing was started), 130 interrupted (Ctrl-C or SIGTERM: "
      "the\n"
      "ranks finish their step and save; a second one kills them).\n"
      "\n"
      "Where its slots are taken it waits in the queue and prints behind which tasks; resources.priority sets the "
      "order\n"
      "(dtrain task list). With --detach it prints the task and the run's folder, whose logs/launcher.log has what it\n"
      "would have shown.\n"
      "\n"
      "One process is started for each of resources.slots_per_trial, bound to its own cores. OMP_NUM_THREADS (the "
      "cores\n"
      "of the slot) and OMP_WAIT_POLICY (passive) are set unless you set them.");
  command->callback([request, mock, exit_code] {
    request->mock = run::parse_mock(*mock);
    *exit_code = run::launch(*request);
    if (!request->dry_run) warn_of_lost_output();  // a closed output does not change how a run ended
  });
}

}  // namespace dtrain::cli
