#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>

#include <unistd.h>

#include "checkpoints/selection.h"
#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/units.h"
#include "dtrain/checkpoint/saver.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::cli {
namespace {

struct DeleteArguments {
  std::string run;
  std::vector<std::string> steps;
  std::optional<std::int64_t> after;
  bool yes = false, force = false;
};

void refuse_in_use(const Checkpoints& found) {
  const bool in_progress = found.run && !run::is_over(*found.run);
  if (!in_progress && checkpoints::wait_for_savers(found.storage, std::chrono::milliseconds(0))) return;
  throw ConfigError("a run is in progress that uses the checkpoints in " + found.storage.string(),
                    "wait for its end or stop it first; `dtrain task list` shows it");
}

void refuse_of_another(const run::RunFolder& folder) {
  const std::filesystem::path owner = run::other_owner_of_checkpoints(folder);
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

}  // namespace

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
    const Checkpoints found = find_checkpoints(arguments->run);
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
    for (const checkpoints::Entry& entry : doomed) std::printf("deleted %s\n", entry.path.c_str());
  });
}

}  // namespace dtrain::cli
