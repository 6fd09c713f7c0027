#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint.h"
#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/launcher/evaluate.h"
#include "dtrain/rank/resume.h"

namespace dtrain::cli {
namespace {

namespace fs = std::filesystem;

struct EvaluateArguments {
  std::string what, step;
  std::vector<std::string> data, overrides;
  std::optional<int> slots;
  fs::path experiment, cluster;
  bool json = false;
};

// Returns the run in whose folder the file or checkpoint lies: RUN/checkpoints/NAME, RUN/checkpoints/final/NAME.
std::optional<fs::path> run_around(const fs::path& path) {
  std::error_code code;
  fs::path folder = fs::weakly_canonical(path, code);
  for (int up = 0; up < 3; ++up) {
    folder = folder.parent_path();
    if (fs::is_regular_file(folder / "plan.json", code)) return folder;
  }
  return std::nullopt;
}

bool is_weights(const std::string& name) {
  std::error_code code;
  return fs::is_regular_file(name, code);
}

// Takes the experiment from the run, as `dtrain launch --continue` does.
void take_experiment(const std::string& run, launcher::EvaluateRequest& request) {
  const rank::ContinuedRun found = rank::read_continued_run(run);
  request.experiment_file = found.experiment_file;
  request.contents = found.contents;
  request.overrides = found.overrides;
  request.cluster = found.cluster_file;
  request.scratch = found.folder.path;
}

launcher::EvaluateRequest request_of(const EvaluateArguments& arguments) {
  for (const std::string& value : arguments.overrides) {
    if (!value.starts_with("initial_weights")) continue;
    throw ConfigError("--set " + value + " has no effect: the weights are those that RUN names",
                      "name a file of weights or a checkpoint in its place");
  }
  launcher::EvaluateRequest request;
  std::optional<std::string> run;
  if (is_weights(arguments.what)) {
    if (!arguments.step.empty()) {
      throw ConfigError(arguments.what + " is a file, so '" + arguments.step + "' cannot be chosen from it");
    }
    request.weights = arguments.what;
  } else {
    const NamedCheckpoints found = find_checkpoints(arguments.what);
    request.weights = choose(found, arguments.step).path;
    request.is_checkpoint = true;
    if (found.run) run = found.run->path.string();
  }
  if (!run) {
    if (const auto around = run_around(request.weights)) run = around->string();
  }
  if (!arguments.experiment.empty()) {
    request.experiment_file = arguments.experiment;
  } else if (run) {
    take_experiment(*run, request);
  } else {
    throw ConfigError(request.weights.string() + " is in no run's folder, so its experiment is not known",
                      "name the experiment file with --experiment");
  }
  if (!arguments.cluster.empty()) request.cluster = arguments.cluster;
  std::vector<std::string> more = arguments.overrides;
  for (const std::string& value : arguments.data) more.push_back("data." + value);
  request.overrides = rank::merge_overrides(request.overrides, more);
  request.slots = arguments.slots;
  return request;
}

// Adds the arguments that both commands have.
void add_arguments(CLI::App& command, EvaluateArguments& arguments) {
  command
      .add_option("RUN", arguments.what,
                  "A run (its number, name or path), the folder of a checkpoint, or a file of weights (.safetensors)")
      ->required();
  command.add_option("STEP", arguments.step, std::string(kStepHelp) + " (default: latest)");
  command
      .add_option("--data", arguments.data,
                  "Other data: one key of the experiment's section data, --data samples=5000 (repeatable)")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  command.add_option("--slots", arguments.slots, "The number of ranks (default: the run's)")
      ->check(CLI::Range(1, 1'000'000));
  command
      .add_option("--set", arguments.overrides, "Override another key of the experiment (values are YAML; repeatable)")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  command.add_option("--experiment", arguments.experiment, "The experiment file (default: the run's)")
      ->type_name("FILE");
  command.add_option("--cluster", arguments.cluster, "The cluster, as for dtrain launch (default: the run's)")
      ->type_name("FILE");
  add_json(command, arguments.json);
}

constexpr const char* kHowItEvaluates =
    "Starts the experiment's ranks, which load the checkpoint, go once over the validation data and end. There is no\n"
    "new run, and the checkpoint's run is not changed. Where the run averages its weights (optimizations.ema), a\n"
    "checkpoint's averages are used. The ranks wait in the queue as those of a launch do (dtrain task list).\n";

void carry_out(const EvaluateArguments& arguments, const launcher::EvaluateRequest& request, ExitCode& exit_code) {
  const bool tells = ::isatty(STDERR_FILENO) == 1;
  if (tells) std::fprintf(stderr, "computing with %s ...\r", request.weights.c_str());
  const auto evaluation = launcher::evaluate(request);
  if (tells) std::fputs("\x1b[K", stderr);
  if (!evaluation) {
    exit_code = ExitCode::kInterrupted;
    return;
  }
  print_answer(
      arguments.json, [&] { return to_json(*evaluation); }, [&] { return evaluation_text(*evaluation); });
}

std::string codes_of_evaluation() {
  return exit_codes_help({ExitCode::kDone, ExitCode::kRunFailed, ExitCode::kBadInput, ExitCode::kInterrupted});
}

void check_format(const fs::path& output) {
  const fs::path extension = output.extension();
  if (extension == ".npy" || extension == ".safetensors" || extension == ".jsonl") return;
  throw ConfigError("--out " + output.string() + ": the format is not known",
                    "give a name that ends in .npy, .safetensors or .jsonl");
}

}  // namespace

void add_evaluate(CLI::App& app, ExitCode* exit_code) {
  auto arguments = std::make_shared<EvaluateArguments>();
  CLI::App* command =
      app.add_subcommand("evaluate", "Compute the validation's metrics for a checkpoint or a file of weights");
  add_arguments(*command, *arguments);
  command->footer(codes_of_evaluation() + kHowItEvaluates +
                  "On as many ranks as the run had, the metrics have the bits of the run's own validation.\n"
                  "\n"
                  "  dtrain evaluate 7                        the newest checkpoint of run 7\n"
                  "  dtrain evaluate 7 best --json            the best one, for programs\n"
                  "  dtrain evaluate 7 step-120 --slots 4     on four ranks\n"
                  "  dtrain evaluate model.safetensors --experiment experiment.yaml");
  command->callback([arguments, exit_code] { carry_out(*arguments, request_of(*arguments), *exit_code); });
}

void add_predict(CLI::App& app, ExitCode* exit_code) {
  auto arguments = std::make_shared<EvaluateArguments>();
  struct Output {
    fs::path file;
    std::optional<std::int64_t> batch_size;
    bool force = false;
  };
  auto output = std::make_shared<Output>();
  CLI::App* command = app.add_subcommand(
      "predict", "Write the model's outputs for the validation data, with a checkpoint or a file of weights");
  add_arguments(*command, *arguments);
  command
      ->add_option("--out", output->file,
                   "The file: .npy, .safetensors (one tensor, outputs), or .jsonl (a line for each sample)")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("--batch-size", output->batch_size,
                   "The samples that a rank computes at once (default: those of a slot in the training)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  command->add_flag("--force", output->force, "Replace FILE if it exists");
  command->footer(
      codes_of_evaluation() + kHowItEvaluates +
      "The outputs have the order of the data, and the file has the same bytes on any number of ranks: each batch is\n"
      "computed by one rank, with one thread. So on CPUs as many ranks as cores (--slots) are the fastest. A `model:`\n"
      "file gives its output, a trial what its predict_batch() returns.\n"
      "\n"
      "  dtrain predict 7 best --out scores.npy\n"
      "  dtrain predict 7 --data validation.features=new.npy --out scores.jsonl");
  command->callback([arguments, output, exit_code] {
    check_format(output->file);
    check_output(fs::absolute(output->file), output->force);
    launcher::EvaluateRequest request = request_of(*arguments);
    request.predictions = output->file;
    request.batch_size = output->batch_size;
    carry_out(*arguments, request, *exit_code);
  });
}

}  // namespace dtrain::cli
