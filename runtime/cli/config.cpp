#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include <sys/mman.h>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/config/batch_split.h"
#include "dtrain/config/cluster.h"
#include "dtrain/config/experiment.h"
#include "dtrain/config/schema.h"
#include "dtrain/launcher/launch.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/scheduler/cluster_agents.h"

namespace dtrain::cli {
namespace {

struct ConfigCheckArguments {
  std::vector<std::string> files;
  std::string cluster;
  std::vector<std::string> overrides;
  bool file_only = false;
};

// Returns false, and prints what is missing, if the file is right but something that it names is not here.
bool check_experiment(const std::string& file, const ConfigCheckArguments& arguments) {
  const config::Experiment experiment = config::read_experiment(file, arguments.overrides);
  if (!arguments.file_only) {
    const std::vector<std::string> missing = launcher::find_missing_files(experiment);
    for (const std::string& text : missing) std::fprintf(stderr, "%s\n", text.c_str());
    if (!missing.empty()) return false;
  }
  const int slots = experiment.resources.slots_per_trial;
  if (slots == 0) {
    std::printf("%s: ok: %s, %s, as many slots as a launch finds best (resources.slots_per_trial: auto)\n",
                file.c_str(), experiment.name.c_str(), config::to_string(experiment.searcher.max_length).c_str());
    return true;
  }
  const auto split = config::split_batch(experiment.global_batch_size, experiment.parts_of_batch(slots));
  if (!split.warning.empty()) std::fprintf(stderr, "dtrain: warning: %s\n", split.warning.c_str());
  std::printf(
      "%s: ok: %s, %s, %s x %lld records a batch\n", file.c_str(), experiment.name.c_str(),
      config::to_string(experiment.searcher.max_length).c_str(),
      count_of(experiment.parts_of_batch(slots), experiment.virtual_ranks > 0 ? "virtual rank" : "slot").c_str(),
      static_cast<long long>(split.per_slot));
  return true;
}

bool check_cluster(const std::string& file) {
  std::vector<std::string> warnings;
  const config::Cluster cluster = scheduler::read_cluster_file(file, warnings);
  for (const std::string& warning : warnings) std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
  const int slots = std::accumulate(cluster.agents.begin(), cluster.agents.end(), 0,
                                    [](int sum, const config::Agent& agent) { return sum + agent.slots; });
  const std::size_t agents = cluster.agents.size();
  const std::string what = agents == 0 ? "this machine" : count_of(agents, "agent") + ", " + count_of(slots, "slot");
  std::printf("%s: ok: %s\n", file.c_str(), what.c_str());
  return true;
}

// Every file is checked, also after one with errors.
ExitCode check(const ConfigCheckArguments& arguments) {
  ExitCode code = ExitCode::kDone;
  const auto report = [&](const auto& check_file) {
    try {
      if (!check_file()) code = ExitCode::kBadInput;
    } catch (const config::ConfigErrors& errors) {
      std::fprintf(stderr, "%s\n", errors.what());
      code = ExitCode::kBadInput;
    }
  };
  if (!arguments.cluster.empty()) report([&] { return check_cluster(arguments.cluster); });
  for (const std::string& file : arguments.files) report([&] { return check_experiment(file, arguments); });
  return code;
}

void add_config_check(CLI::App& config, ExitCode* exit_code) {
  auto arguments = std::make_shared<ConfigCheckArguments>();
  CLI::App* command =
      config.add_subcommand("check", "Report all errors of experiment or cluster files (exit code 2), or print ok");
  CLI::Option* files = command->add_option("FILE", arguments->files, "The experiment files (YAML)");
  CLI::Option* cluster =
      command->add_option("--cluster", arguments->cluster, "A cluster file (YAML), or a hostfile of MPI, to check")
          ->type_name("FILE");
  command->add_option("--set", arguments->overrides, "Override one key of the experiments before checking (repeatable)")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_flag("--file-only", arguments->file_only,
                    "Do not check that the program, the model and the data files that an experiment names exist");
  command->callback([arguments, files, cluster, exit_code] {
    if (files->empty() && cluster->empty()) throw CLI::RequiredError("FILE or --cluster");
    if (files->empty() && !arguments->overrides.empty()) throw CLI::RequiredError("--set: FILE");
    *exit_code = check(*arguments);
  });
}

void add_config_schema(CLI::App& config) {
  auto kind = std::make_shared<std::string>();
  CLI::App* command = config.add_subcommand(
      "schema", "Print the JSON Schema of experiment or cluster files, for completion and checks in an editor");
  command->add_option("KIND", *kind, "The kind of file")->required()->check(CLI::IsMember({"experiment", "cluster"}));
  command->footer(
      "Write the schema:\n"
      "  dtrain config schema experiment > experiment.schema.json\n"
      "Name it in the first line of the experiment file:\n"
      "  # yaml-language-server: $schema=experiment.schema.json");
  command->callback([kind] {
    const std::string_view text = *kind == "cluster" ? config::cluster_schema() : config::experiment_schema();
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

// Only dtrain-worker has libtorch, which knows the operators. This program prints the worker's text and checks that all
// of it could be written.
ExitCode inspect(const AnswerArguments& arguments) {
  const UniqueFd said(::memfd_create("dtrain model inspect", MFD_CLOEXEC));
  if (!said) throw SystemError("cannot make a file in memory", errno);
  ProcessOptions options;
  options.fds = {{STDOUT_FILENO, said.get()}};
  const rank::TrainingProgram worker = rank::training_program("dtrain-worker");
  options.command = {worker.file.string(), "--inspect", arguments.name};
  if (!worker.library_path.empty()) options.environment["LD_LIBRARY_PATH"] = worker.library_path;
  if (arguments.json) options.command.emplace_back("--json");
  options.new_process_group = false;  // Ctrl-C ends both
  const ExitStatus status = Process::start(options).wait();
  if (status.signal != 0) throw Error("dtrain-worker --inspect was " + status.describe());
  const std::string text = read_file("/proc/self/fd/" + std::to_string(said.get()));
  std::fwrite(text.data(), 1, text.size(), stdout);
  return status.exit_code();
}

}  // namespace

void add_config(CLI::App& app, ExitCode* exit_code) {
  CLI::App* command = app.add_subcommand("config", "Work with experiment and cluster files");
  command->require_subcommand(1);
  add_config_check(*command, exit_code);
  add_config_schema(*command);
}

void add_model(CLI::App& app, ExitCode* exit_code) {
  CLI::App* model = app.add_subcommand("model", "Look at the files that `model:` names");
  model->require_subcommand(1);
  auto arguments = std::make_shared<AnswerArguments>();
  CLI::App* command = model->add_subcommand(
      "inspect",
      "Show the inputs, outputs, parameters and operators of a file of torch.export, and whether it can be "
      "trained and evaluated");
  command->add_option("FILE", arguments->name, "The file, as torch.export.save() writes it (.pt2)")->required();
  command->add_flag("--json", arguments->json, "One line of JSON");
  command->footer("A file that cannot be trained is an error that names what is not supported.");
  command->callback([arguments, exit_code] { *exit_code = inspect(*arguments); });
}

}  // namespace dtrain::cli
