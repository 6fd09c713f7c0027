#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>

#include "checkpoint.h"
#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/checkpoint/memory_folder.h"
#include "dtrain/checkpoint/saver.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/rank/plan_file.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::cli {
namespace {

struct DeleteArguments {
  std::string run;
  std::vector<std::string> steps;
  std::optional<std::int64_t> after;
  bool yes = false, force = false;
};

// A launcher or keepers that were killed have left states in memory, which may be further than all that is not deleted.
// Those of keepers on other hosts do not count any more (checkpoint/host_states.h).
void forget_memory(const rank::RunFolder& folder) {
  std::error_code code;
  std::filesystem::remove_all(checkpoints::memory_folder_of(folder.path), code);
  if (std::filesystem::exists(folder.plan(), code) && read_json(folder.plan()).contains("lineage")) {
    rank::update_plan_file(folder.plan(), "lineage", Json());
  }
}

void refuse_in_use(const NamedCheckpoints& found) {
  const bool in_progress = found.run && !rank::is_over(*found.run);
  if (!in_progress && checkpoints::wait_for_savers(found.storage, std::chrono::milliseconds(0))) return;
  throw ConfigError("a run is in progress that uses the checkpoints in " + found.storage.string(),
                    "wait for its end or stop it first; `dtrain task list` shows it");
}

void refuse_of_another(const rank::RunFolder& folder) {
  const std::filesystem::path owner = rank::other_owner_of_checkpoints(folder);
  if (owner.empty()) return;
  throw ConfigError("these are the checkpoints of the run " + owner.string() + ", not of " + folder.path.string(),
                    "name that run; " + folder.path.string() +
                        " gets a folder of its own when it goes on (dtrain launch --continue)");
}

// ConfigError if no whole checkpoint of the run would be left: the run could not go on.
void refuse_last_good(const std::vector<checkpoints::Entry>& all, const std::vector<checkpoints::Entry>& doomed) {
  const auto is_doomed = [&](const checkpoints::Entry& entry) {
    return std::any_of(doomed.begin(), doomed.end(), [&](const auto& other) { return other.path == entry.path; });
  };
  const auto good = [](const checkpoints::Entry& entry) { return entry.damage.empty(); };
  if (std::none_of(doomed.begin(), doomed.end(), good)) return;
  for (auto entry = all.rbegin(); entry != all.rend(); ++entry) {
    if (!is_doomed(*entry) && good(*entry) && verify_visibly(*entry).empty()) return;
  }
  throw ConfigError(
      "no other checkpoint of the run is whole: without " + step_text(doomed.back()) + " it could not go on",
      "add --force to delete it nevertheless");
}

bool is_agreed(const std::vector<checkpoints::Entry>& doomed, bool yes) {
  if (yes) return true;
  if (::isatty(STDIN_FILENO) == 0) {
    throw ConfigError("nobody can be asked here whether to delete checkpoints", "add --yes to delete them unasked");
  }
  std::int64_t bytes = 0;
  std::vector<std::string> names;
  for (const checkpoints::Entry& entry : doomed) {
    bytes += entry.bytes;
    names.push_back(step_text(entry));
  }
  std::printf("delete %s (%s) for good? [y/N] ", join_with_and(names).c_str(),
              format_bytes(static_cast<double>(bytes)).c_str());
  std::fflush(stdout);
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

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

// libtorch writes models, and only dtrain-worker has it.
ExitCode export_model(const checkpoints::Entry& entry, const std::filesystem::path& output,
                      const CheckpointExportArguments& arguments, const std::filesystem::path& eval_output) {
  ProcessOptions options;
  const rank::TrainingProgram worker = rank::training_program("dtrain-worker");
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

}  // namespace

void check_output(const std::filesystem::path& output, bool replaces) {
  std::error_code code;
  if (std::filesystem::is_directory(output, code)) {
    throw ConfigError(output.string() + " is a folder", "name a file in it");
  }
  if (!std::filesystem::is_directory(output.parent_path(), code)) {
    throw ConfigError(
        "there is no folder " + output.parent_path().string() + " to write " + output.filename().string() + " into",
        "make it first, or name a file in another folder");
  }
  if (!replaces && std::filesystem::exists(output, code)) {
    throw ConfigError(output.string() + " exists", "name another file, or add --force to replace it");
  }
}

void add_checkpoint_delete(CLI::App& checkpoint) {
  auto arguments = std::make_shared<DeleteArguments>();
  CLI::App* command = checkpoint.add_subcommand("delete", "Delete checkpoints of a run that is not in progress");
  add_run_or_checkpoint(*command, arguments->run);
  command->add_option("STEP", arguments->steps, std::string(kStepHelp) + "; not with a checkpoint's folder");
  command->add_option("--after", arguments->after, "All checkpoints of the run after so many batches")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("-y,--yes", arguments->yes, "Do not ask");
  command->add_flag("--force", arguments->force, "Also the only one that is whole");
  command->callback([arguments] {
    const NamedCheckpoints found = find_checkpoints(arguments->run);
    std::vector<checkpoints::Entry> doomed;
    if (!found.run && arguments->after) {
      throw ConfigError(arguments->run + " is one checkpoint, and --after chooses from those of a run",
                        "name the run instead of the folder");
    }
    if (found.run && arguments->steps.empty() && !arguments->after) {
      throw ConfigError("which checkpoints are to be deleted?",
                        "name their steps: dtrain checkpoint list " + arguments->run + " shows them");
    }
    if (!found.run) doomed = found.entries;
    const auto add = [&](const checkpoints::Entry& entry) {
      const bool twice = std::any_of(doomed.begin(), doomed.end(), [&](const auto& e) { return e.path == entry.path; });
      if (!twice) doomed.push_back(entry);
    };
    for (const std::string& step : arguments->steps) add(choose(found, step));
    for (const checkpoints::Entry& entry : found.entries) {
      if (arguments->after && entry.about.step > *arguments->after) add(entry);
    }
    if (doomed.empty()) {
      throw ConfigError("there is no checkpoint after batch " + std::to_string(*arguments->after) + " in " +
                        found.storage.string());
    }
    if (found.run) refuse_of_another(*found.run);
    refuse_in_use(found);
    if (!arguments->force) refuse_last_good(checkpoints::list(found.storage), doomed);
    if (!is_agreed(doomed, arguments->yes)) {
      std::printf("nothing was deleted\n");
      return;
    }
    std::vector<std::filesystem::path> paths;
    for (const checkpoints::Entry& entry : doomed) paths.push_back(entry.path);
    checkpoints::remove_checkpoints(paths);
    if (found.run) forget_memory(*found.run);
    for (const checkpoints::Entry& entry : doomed) std::printf("deleted %s\n", entry.path.c_str());
  });
}

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
    const NamedCheckpoints found = find_checkpoints(arguments->run);
    const checkpoints::Entry& entry = choose(found, arguments->step);
    std::filesystem::path eval_output;
    if (model && arguments->model.empty() && entry.about.run.contains("eval_model")) {
      // "model_eval.pt" beside "model.pt"
      eval_output = output.parent_path() / (output.stem().string() + "_eval" + output.extension().string());
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
