// `dtrain run`: launches a Python script without an experiment file.
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
#include "dtrain/config/length.h"
#include "dtrain/launcher/launch.h"
#include "standard_output.h"

namespace dtrain::cli {
namespace {

namespace fs = std::filesystem;

// The experiment of a script, in a file of its own until the launch ends.
class ScriptExperiment {
 public:
  ScriptExperiment(const std::vector<std::string>& words, int slots) {
    const fs::path script = fs::absolute(words.front().substr(0, words.front().find(".py") + 3)).lexically_normal();
    file = script.parent_path() / (script.stem().string() + ".run.yaml");
    std::vector<std::string> entrypoint(words);
    entrypoint.front() = fs::path(words.front()).filename();
    // The batch size of the script's loader replaces this one once it is known.
    const Json experiment = {{"name", script.stem().string()},
                             {"entrypoint", entrypoint},
                             {"hyperparameters", {{"global_batch_size", slots}, {"batch_size_of_loader", true}}},
                             {"resources", {{"slots_per_trial", slots}}},
                             {"searcher", {{"max_length", {{"epochs", config::kEpochsOfScripts}}}}}};
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
  ScriptExperiment(const ScriptExperiment&) = delete;
  ScriptExperiment& operator=(const ScriptExperiment&) = delete;

  fs::path file;  // need not exist: relative paths in the experiment are relative to its folder
  fs::path contents;

 private:
  fs::path folder_;
};

}  // namespace

void add_run_script(CLI::App& app, ExitCode* exit_code) {
  auto request = std::make_shared<run::LaunchRequest>();
  auto slots = std::make_shared<int>(1);
  CLI::App* command =
      app.add_subcommand("run", "Train with a Python script that calls dtrain.init(), without an experiment file");
  CLI::Option* const slots_given =
      command
          ->add_option("--slots", *slots,
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
      "\n"
      "  dtrain run --slots 2 train.py --epochs 3\n"
      "  dtrain run --slots 4 --set optimizations.mixed_precision=bf16 train.py");
  command->callback([request, slots, slots_given, command, exit_code] {
    const std::vector<std::string> words = command->remaining();
    if (words.empty()) throw CLI::RequiredError("SCRIPT");
    if (words.front().starts_with("-")) {
      throw ConfigError("dtrain run has no option " + words.front(), "options of the script follow its name");
    }
    if (!words.front().ends_with(".py")) {
      throw ConfigError("dtrain run: '" + words.front() + "' is no Python script",
                        "a trial (train.py:MyTrial) and other programs need an experiment file: dtrain launch");
    }
    if (slots_given->count() == 0) *slots = run::ranks_of_pods();
    const ScriptExperiment experiment(words, *slots);
    request->experiment_file = experiment.file;
    request->contents = experiment.contents;
    *exit_code = run::launch(*request);
    if (!request->dry_run) warn_of_lost_output();
  });
}

}  // namespace dtrain::cli
