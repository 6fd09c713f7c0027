#include "dtrain/run/run_state.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "process_id.h"

namespace dtrain::run {

bool is_over(const RunFolder& folder) {
  std::ifstream file(folder.events());
  bool any_left = false;
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    const std::string event = json.value("event", std::string());
    if (event == "run_ended") return true;
    if (event != "submitted" && event != "run_started" && event != "rank_started") continue;
    // The same number with another start is a later process.
    const std::uint64_t ticks = start_ticks(json.value("pid", 0));
    any_left |= ticks != 0 && ticks == json.value("start_ticks", ticks);
  }
  return !any_left;
}

RunFolder newest_running() {
  const std::vector<RunFolder> runs = all_runs();
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    if (!is_over(*run)) return *run;
  }
  throw ConfigError("no run under " + std::filesystem::absolute("runs").string() + " goes on",
                    "name one; `dtrain task list` has those that were launched from other folders");
}

}  // namespace dtrain::run
