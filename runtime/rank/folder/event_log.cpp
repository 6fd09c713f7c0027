// events.jsonl: how lines are written (event_log.h), and the state of a run that they tell (dtrain/run/run_state.h).
#include "dtrain/rank/event_log.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/host/processes.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::run {
namespace {

// True if the process that the event names is still there. The same number with another start time is a later process.
bool is_alive(const Json& event) {
  const std::uint64_t ticks = host::start_ticks(event.value("pid", 0));
  return ticks != 0 && ticks == event.value("start_ticks", ticks);
}

std::string name_of(const Json& event) {
  const int rank = event.value("rank", -1);
  return (rank < 0 ? "its launcher" : "rank " + std::to_string(rank)) + " (pid " +
         std::to_string(event.value("pid", 0)) + ")";
}

}  // namespace

EventLog::EventLog(const std::filesystem::path& path, const Clock& clock, int rank, std::string host)
    : clock_(clock), rank_(rank), host_(std::move(host)), file_(path) {}

void EventLog::write(const std::string& event, const Json& fields) {
  Json line = {{"time", format_utc(clock_.wall())}, {"event", event}};
  if (rank_ >= 0) line["rank"] = rank_;
  line["pid"] = ::getpid();
  line["host"] = host_;
  if (fields.is_object()) {
    for (const auto& [key, value] : fields.items()) line[key] = value;
  }
  const std::scoped_lock lock(mutex_);
  file_.append(to_line(line) + "\n");
}

Json run_ended(ExitCode exit_code, const std::string& cause) {
  const bool interrupted = exit_code == ExitCode::kInterrupted || exit_code == ExitCode::kPreempted;
  const char* state = exit_code == ExitCode::kDone ? "done" : interrupted ? "interrupted" : "failed";
  Json fields = {{"state", state}, {"exit_code", exit_code}};
  if (!cause.empty()) fields["cause"] = cause;
  return fields;
}

RunState read_state(const RunFolder& folder) {
  RunState state;
  std::vector<Json> processes;
  bool resumes = false;  // the attempt goes on from a checkpoint: its ranks have not begun before they have read it
  std::ifstream file(folder.events());
  for (std::string line; std::getline(file, line);) {
    Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    const std::string event = json.value("event", std::string());
    if (event == "run_ended") state.exit_code = json.value("exit_code", ExitCode::kDone);
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
