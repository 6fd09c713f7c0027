#include "dtrain/run/run_state.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "folder/process_id.h"

namespace dtrain::run {

namespace {

struct SeenOfRun {
  bool ended = false;     // it has the event run_ended
  bool any_left = false;  // a process of it is left on this host
  bool started = false;   // it is no longer queued
  bool is_over() const { return ended || !any_left; }
};

SeenOfRun seen_of_run(const RunFolder& folder) {
  SeenOfRun state;
  std::ifstream file(folder.events());
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    const std::string event = json.value("event", std::string());
    if (event == "run_ended") {
      state.ended = true;
      break;
    }
    state.started |= event == "run_started" || event == "rank_started";
    if (event != "submitted" && event != "run_started" && event != "rank_started") continue;
    // The same number with another start time is a later process.
    const std::uint64_t ticks = start_ticks(json.value("pid", 0));
    state.any_left |= ticks != 0 && ticks == json.value("start_ticks", ticks);
  }
  return state;
}

}  // namespace

bool is_over(const RunFolder& folder) {
  return seen_of_run(folder).is_over();
}

RunFolder newest_running() {
  const std::vector<RunFolder> runs = all_runs();
  std::optional<RunFolder> queued;
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    const SeenOfRun state = seen_of_run(*run);
    if (state.is_over()) continue;
    if (state.started) return *run;
    if (!queued) queued = *run;
  }
  if (queued) return *queued;
  throw ConfigError("no run under " + std::filesystem::absolute("runs").string() + " is in progress",
                    "name one; `dtrain task list` has those that were launched from other folders: task:ID");
}

}  // namespace dtrain::run
