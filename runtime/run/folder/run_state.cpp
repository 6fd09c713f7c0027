#include "dtrain/run/run_state.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "folder/process_id.h"

namespace dtrain::run {
namespace {

// Of an event that names a process: whether that process is still there. The same number with another start time is a
// later process.
bool is_alive(const Json& event) {
  const std::uint64_t ticks = start_ticks(event.value("pid", 0));
  return ticks != 0 && ticks == event.value("start_ticks", ticks);
}

std::string name_of(const Json& event) {
  const int rank = event.value("rank", -1);
  return (rank < 0 ? "its launcher" : "rank " + std::to_string(rank)) + " (pid " +
         std::to_string(event.value("pid", 0)) + ")";
}

}  // namespace

RunState read_state(const RunFolder& folder) {
  RunState state;
  std::vector<Json> processes;
  bool resumes = false;  // the attempt goes on from a checkpoint: its ranks have not begun before they have read it
  std::ifstream file(folder.events());
  for (std::string line; std::getline(file, line);) {
    Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    const std::string event = json.value("event", std::string());
    if (event == "run_ended") state.exit_code = json.value("exit_code", 0);
    if (event == "attempt_failed") state.restarts = json.value("restart", state.restarts + 1);
    if (event == "continued") state.restarts = 0, ++state.continued;
    if (event == "attempt_started") resumes = json.contains("resume_from");
    if (event == "resumed" || (event == "rank_running" && !resumes)) state.trained = state.continued;
    if (event == "checkpoint_saved") state.last_saved = json.value("step", std::int64_t{0});
    state.started |= event == "run_started" || event == "rank_started";
    if (event != "submitted" && event != "run_started" && event != "rank_started") continue;
    state.exit_code.reset();  // it goes on
    processes.push_back(std::move(json));
  }
  for (const Json& process : processes) {
    if (state.alive.empty() && is_alive(process)) state.alive = name_of(process);
  }
  return state;
}

bool is_over(const RunFolder& folder) {
  return read_state(folder).is_over();
}

RunFolder newest_running() {
  const std::vector<RunFolder> runs = all_runs();
  std::optional<RunFolder> queued;
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    const RunState state = read_state(*run);
    if (state.is_over()) continue;
    if (state.started) return *run;
    if (!queued) queued = *run;
  }
  if (queued) return *queued;
  throw ConfigError("no run under " + std::filesystem::absolute("runs").string() + " is in progress",
                    "name one; `dtrain task list` has those that were launched from other folders: task:ID");
}

}  // namespace dtrain::run
