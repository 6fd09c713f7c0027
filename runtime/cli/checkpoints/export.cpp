#include <cstdio>
#include <memory>

#include "checkpoints/selection.h"
#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/units.h"
#include "dtrain/checkpoint/export.h"
#include "dtrain/rank/libtorch.h"

namespace dtrain::cli {
namespace {

struct CheckpointExportArguments {
  std::string run, step, output, format = "safetensors", model;
  bool best = false, latest = false, force = false;
};

// DataError if the checkpoint is damaged: it is not exported.
void check(const checkpoints::Entry& entry) {
  const auto problems = verify_visibly(entry);
  if (problems.empty()) return;
  throw DataError(entry.path.string() + " is damaged: " + join(problems, "; "), "export another one");
}

// Checks the output before the checkpoint is read. ConfigError.
void check_output(const std::filesystem::path& output, bool force) {
  std::error_code code;
  if (std::filesystem::is_directory(output, code)) {
    throw ConfigError(output.string() + " is a folder", "name a file in it");
  }
  if (!std::filesystem::is_directory(output.parent_path(), code)) {
    throw ConfigError(
        "there is no folder " + output.parent_path().string() + " to write " + output.filename().string() + " into",
        "make it first, or name a file in another folder");
  }
  if (!force && std::filesystem::exists(output, code)) {
    throw ConfigError(output.string() + " exists", "name another file, or add --force to replace it");
  }
}

// libtorch writes models, and only dtrain-worker has it.
ExitCode export_model(const checkpoints::Entry& entry, const std::filesystem::path& output,
                      const CheckpointExportArguments& arguments, const std::filesystem::path& eval_output) {
  ProcessOptions options;
  const run::TrainingProgram worker = run::training_program("dtrain-worker");
  options.command = {worker.file.string(), "--export", entry.path.string(),
                     output.string(),      "--format", arguments.format};
  if (!worker.library_path.empty()) options.environment["LD_LIBRARY_PATH"] = worker.library_path;
  if (!arguments.model.empty()) options.command.insert(options.command.end(), {"--model", arguments.model});
  if (!eval_output.empty()) {
    options.command.insert(options.command.end(), {"--eval-out", eval_output.string()});
  }
  options.new_process_group = false;  // Ctrl-C ends both
  const ExitStatus status = Process::start(options).wait();
  if (status.signal == 0) return status.exit_code();
  throw Error("dtrain-worker --export was " + status.describe());
}

// "model.pt" -> "model_eval.pt"
std::filesystem::path beside_for_eval(const std::filesystem::path& output) {
  return output.parent_path() / (output.stem().string() + "_eval" + output.extension().string());
}

}  // namespace

void add_checkpoint_export(CLI::App& checkpoint, ExitCode* exit_code) {
  auto arguments = std::make_shared<CheckpointExportArguments>();
  CLI::App* command =
      checkpoint.add_subcommand("export", "Write the weights of a checkpoint as a file for other programs");
  add_run_or_checkpoint(*command, arguments->run);
  CLI::Option* step = command->add_option("--step", arguments->step, kStepHelp)->type_name("STEP");
  CLI::Option* best = command->add_flag("--best", arguments->best, "The one with the best searcher.metric");
  CLI::Option* latest = command->add_flag("--latest", arguments->latest, "The newest (default)");
  step->excludes(best)->excludes(latest);
  best->excludes(latest);
  command->add_option("-o,--output", arguments->output, "The file to write")->required()->type_name("FILE");
  command
      ->add_option("--format", arguments->format,
                   "safetensors: the weights under all their names; torchscript or pt2: the model of a `model:` "
                   "experiment with them, in the form of its file; of a pair of files also FILE_eval, the one for "
                   "validation")
      ->check(CLI::IsMember({"safetensors", "torchscript", "pt2"}));
  command
      ->add_option("--model", arguments->model,
                   "For torchscript and pt2: the model's file, where it is no longer where the run found it")
      ->type_name("FILE");
  command->add_flag("--force", arguments->force, "Replace FILE if it exists");
  command->footer("The checkpoint is checked first, as `dtrain checkpoint verify` does.");
  command->callback([arguments, exit_code] {
    if (arguments->best) arguments->step = "best";
    if (arguments->latest) arguments->step = "latest";
    const bool model = arguments->format != "safetensors";
    if (!model && !arguments->model.empty()) {
      throw ConfigError("--model has no effect with --format safetensors",
                        "leave it out, or add --format torchscript (or pt2)");
    }
    const auto output = std::filesystem::absolute(arguments->output).lexically_normal();
    check_output(output, arguments->force);
    const Checkpoints found = find_checkpoints(arguments->run);
    const checkpoints::Entry& entry = choose(found, arguments->step);
    std::filesystem::path eval_output;
    if (model && arguments->model.empty() && entry.about.run.contains("eval_model")) {
      eval_output = beside_for_eval(output);
      check_output(eval_output, arguments->force);
    }
    check(entry);
    if (model) {
      *exit_code = export_model(entry, output, *arguments, eval_output);
      return;
    }
    const auto bytes = checkpoints::export_safetensors(entry.path, output);
    std::printf("%s: the weights of %s, %s\n", output.c_str(), step_text(entry).c_str(),
                format_bytes(static_cast<double>(bytes)).c_str());
  });
}

}  // namespace dtrain::cli
