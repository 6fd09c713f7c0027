#include "launch_again.h"

#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/text.h"
#include "dtrain/rank/resume.h"
#include "own_program.h"

namespace dtrain::board {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostKeys = 100;
constexpr auto kLongestLaunch = std::chrono::minutes(2);  // until it is in the queue

std::vector<std::string> settings_of(const Json& request) {
  std::vector<std::string> settings;
  for (const Json& item : list_at(request, "set")) {
    const std::string setting = item.is_string() ? std::string(trimmed(item.get_ref<const std::string&>())) : "";
    if (setting.find('=') == std::string::npos || setting.front() == '=') {
      throw ConfigError("'" + printable(setting) + "' changes no key", "write KEY=VALUE, as for dtrain launch --set");
    }
    if (settings.size() == kMostKeys)
      throw ConfigError("a launch changes " + std::to_string(kMostKeys) + " keys at most");
    settings.push_back(setting);
  }
  return settings;
}

// Returns the folder from which a launch makes its run beside this one.
fs::path place_of(const rank::RunFolder& folder) {
  const fs::path runs = folder.path.parent_path();
  if (runs.filename() == "runs") return runs.parent_path();
  throw ConfigError("a launch makes its run under ./runs, and this run is in " + runs.string(),
                    "launch it in a terminal, with --run-dir");
}

std::string launch(const rank::RunFolder& folder, Launch how, const Json& request) {
  const std::vector<std::string> changed = settings_of(request);
  std::vector<std::string> arguments{"launch", "--detach"};
  std::vector<std::string> settings = changed;
  CallOptions options{.working_folder = folder.path.parent_path(), .longest = kLongestLaunch};
  if (how == Launch::kContinue) {
    arguments.push_back("--continue=" + folder.path.string());
  } else {
    const rank::ContinuedRun run = rank::read_continued_run(folder.path.string());
    options.working_folder = place_of(folder);
    settings = rank::merge_overrides(run.overrides, changed);
    if (!run.contents.empty()) arguments.push_back("--contents=" + run.contents.string());
    if (!run.cluster_file.empty()) arguments.push_back("--cluster=" + run.cluster_file.string());
    arguments.push_back(run.experiment_file.string());
  }
  for (const std::string& setting : settings) arguments.push_back("--set=" + setting);
  const Called called = call_dtrain(arguments, options);
  if (!called.success) throw ConfigError(printable(called.errors));
  return printable(trimmed(called.output));
}

}  // namespace

Json launch_run(const rank::RunFolder& folder, Launch how, const Json& request) {
  try {
    return {{"launched", true}, {"text", launch(folder, how, request)}};
  } catch (const Error& error) {
    return {{"launched", false}, {"text", describe(error)}};
  }
}

}  // namespace dtrain::board
