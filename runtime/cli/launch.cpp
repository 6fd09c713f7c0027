#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/config/keys.h"
#include "dtrain/launcher/launch.h"

namespace dtrain::cli {
namespace {

namespace fs = std::filesystem;

// How `dtrain run` runs a script.
struct ScriptOptions {
  int slots = 1;
  bool as_is = false;
  std::string backend = "dtrain";  // of its process groups, with --as-is: or keep
  bool plain = false;
};

// Returns the keys of the experiment that a script with a loop and process groups of its own adds.
Json keys_as_is(const ScriptOptions& options) {
  Json keys = {{"as_is", options.backend == "keep" ? "record" : "exchange"}, {"max_restarts", 0}};
  if (options.plain) keys["optimizations"] = {{"matmul", "default"}, {"operators", "default"}};
  return keys;
}

// The experiment of a script, in a file of its own until the launch ends.
class ScriptExperiment {
 public:
  ScriptExperiment(const std::vector<std::string>& words, const ScriptOptions& options) {
    const fs::path script = fs::absolute(words.front().substr(0, words.front().find(".py") + 3)).lexically_normal();
    file = script.parent_path() / (script.stem().string() + ".run.yaml");
    std::vector<std::string> entrypoint(words);
    entrypoint.front() = fs::path(words.front()).filename();
    // The batch size of the script's loader replaces this one once it is known.
    Json experiment = {{"name", script.stem().string()},
                       {"entrypoint", entrypoint},
                       {"hyperparameters", {{"global_batch_size", options.slots}, {"batch_size_of_loader", true}}},
                       {"resources", {{"slots_per_trial", options.slots}}}};
    const Json length = {{"searcher", {{"max_length", {{"epochs", config::kEpochsOfScripts}}}}}};
    experiment.update(options.as_is ? keys_as_is(options) : length);
    std::string name = (fs::temp_directory_path() / "dtrain-run-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw SystemError("cannot make a folder like " + name, errno);
    folder_ = name;
    contents = folder_ / file.filename();
    write_file_atomic(contents, to_line(experiment) + "\n");
  }
  ~ScriptExperiment() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  ScriptExperiment& operator=(ScriptExperiment&&) = delete;

  fs::path file;  // need not exist: relative paths in the experiment are relative to its folder
  fs::path contents;

 private:
  fs::path folder_;
};

}  // namespace

void add_launch(CLI::App& app, ExitCode* exit_code) {
  auto request = std::make_shared<launcher::LaunchRequest>();
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
  command->add_flag("--trial", request->is_trial)->group("");      // for slots_per_trial: auto: see LaunchRequest
  command->add_flag("--evaluate", request->evaluates)->group("");  // for dtrain evaluate and predict
  command->add_option("--predict", request->predictions)->group("");
  command->add_option("--batch-size", request->prediction_batch)->group("");
  command->add_option("--orders", request->orders)->group("");      // for a validation beside the training
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
    request->mock = rank::parse_mock(*mock);
    request->evaluates = request->evaluates || !request->predictions.empty() || !request->orders.empty();
    *exit_code = launcher::launch(*request);
    if (!request->dry_run) warn_of_lost_output();  // a closed output does not change how a run ended
  });
}

void add_run_script(CLI::App& app, ExitCode* exit_code) {
  auto request = std::make_shared<launcher::LaunchRequest>();
  auto options = std::make_shared<ScriptOptions>();
  CLI::App* command = app.add_subcommand(
      "run",
      "Train with a Python script that calls dtrain.init(), or with any script (--as-is), without an experiment file");
  CLI::Option* const as_is = command->add_flag("--as-is", options->as_is,
                                               "Run a script of torch.distributed (DDP, FSDP, Trainer, ...) unchanged: "
                                               "its process groups exchange through dtrain, and "
                                               "its steps are recorded");
  command
      ->add_option(
          "--backend", options->backend,
          "With --as-is: dtrain exchanges in place of gloo and nccl, or keep leaves the backends that the script names")
      ->check(CLI::IsMember({"dtrain", "keep"}))
      ->capture_default_str()
      ->needs(as_is);
  command
      ->add_flag("--plain", options->plain,
                 "With --as-is: leave out what makes PyTorch's own operators faster on CPUs, and may change results by "
                 "rounding "
                 "(optimizations.matmul and optimizations.operators: default)")
      ->needs(as_is);
  CLI::Option* const slots_given =
      command
          ->add_option("--slots", options->slots,
                       "The number of ranks (resources.slots_per_trial); in a pod of Kubernetes "
                       "that of all its job's pods by default")
          ->check(CLI::Range(1, 1'000'000))
          ->capture_default_str();
  command
      ->add_option(
          "--set", request->overrides,
          "Set one key of the experiment: --set optimizations.mixed_precision=bf16 (values are YAML; repeatable)")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);  // the next word may be the script
  command->add_option("--cluster", request->cluster, "The cluster, as for dtrain launch")->type_name("FILE");
  command->add_option("--run-dir", request->run_dir, "The folder of the run (default: the next number under runs/)")
      ->type_name("DIR");
  command->add_flag("--dry-run", request->dry_run, "Print the plan and start nothing");
  command->prefix_command();
  command->footer(
      "dtrain run [OPTIONS] SCRIPT.py [ARGUMENTS OF THE SCRIPT...]\n"
      "\n"
      "The script's loop has the length of the training, and its loader the batch size, which is that of all ranks\n"
      "together. Runs go on as others do: dtrain launch --continue RUN. docs/python.md describes such scripts.\n"
      "With --as-is the script does not call dtrain, and saves what it needs itself: docs/torch-distributed.md.\n"
      "\n"
      "  dtrain run --slots 2 train.py --epochs 3\n"
      "  dtrain run --slots 4 --set optimizations.mixed_precision=bf16 train.py\n"
      "  dtrain run --as-is --slots 2 ddp_train.py --epochs 3");
  command->callback([request, options, slots_given, command, exit_code] {
    const std::vector<std::string> words = command->remaining();
    if (words.empty()) throw CLI::RequiredError("SCRIPT");
    if (words.front().starts_with("-")) {
      throw ConfigError("dtrain run has no option " + words.front(), "options of the script follow its name");
    }
    if (!words.front().ends_with(".py")) {
      throw ConfigError("dtrain run: '" + words.front() + "' is no Python script",
                        "a trial (train.py:MyTrial) and other programs need an experiment file: dtrain launch");
    }
    if (slots_given->count() == 0) options->slots = launcher::ranks_of_pods();
    const ScriptExperiment experiment(words, *options);
    request->experiment_file = experiment.file;
    request->contents = experiment.contents;
    *exit_code = launcher::launch(*request);
    if (!request->dry_run) warn_of_lost_output();
  });
}

}  // namespace dtrain::cli
