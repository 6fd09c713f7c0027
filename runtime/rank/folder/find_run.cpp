// Runs that are there already: they are found by name or number, their events tell their state, and one in progress
// is asked for a trace.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/host/network.h"
#include "dtrain/host/processes.h"
#include "dtrain/profile/run_records.h"
#include "dtrain/rank/launcher_duties.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::rank {

namespace {

namespace fs = std::filesystem;

constexpr const char* kRunsFolder = "runs";

// Returns the number at the start of "0007-fashion-mnist".
std::optional<int> run_number(const std::string& name) {
  std::string_view rest = name;
  const auto number = take_number<int>(rest);
  return rest.empty() || rest.starts_with('-') ? number : std::nullopt;
}

std::vector<std::string> run_names(const fs::path& runs) {
  std::vector<std::string> names;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(runs, code)) {
    if (entry.is_directory(code) && run_number(entry.path().filename())) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::pair(*run_number(a), a) < std::pair(*run_number(b), b);
  });
  return names;
}

bool holds_run(const fs::path& path) {
  std::error_code code;
  return fs::exists(path / "experiment.yaml", code) || fs::exists(path / "events.jsonl", code);
}

// True if the process that the event names is still there. The same number with another start time is a later process.
bool is_alive(const Json& event) {
  const std::uint64_t ticks = host::start_ticks(value_at<int>(event, "pid").value_or(0));
  return ticks != 0 && ticks == value_at<std::uint64_t>(event, "start_ticks").value_or(ticks);
}

std::string name_of(const Json& event) {
  const int rank = value_at<int>(event, "rank").value_or(-1);
  return (rank < 0 ? "its launcher" : "rank " + std::to_string(rank)) + " (pid " +
         std::to_string(value_at<int>(event, "pid").value_or(0)) + ")";
}

}  // namespace

std::optional<int> RunFolder::number() const {
  return run_number(path.filename());
}

std::vector<RunFolder> all_runs() {
  const fs::path runs = fs::absolute(kRunsFolder);
  std::vector<RunFolder> folders;
  for (const std::string& name : run_names(runs)) folders.push_back({runs / name});
  return folders;
}

std::vector<RunFolder> runs_in(const fs::path& folder) {
  const fs::path path = fs::absolute(folder).lexically_normal();
  std::error_code code;
  if (!fs::is_directory(path, code)) {
    throw ConfigError(folder.string() + ": there is no such folder", "name a folder that holds the folders of runs");
  }
  // An experiment.yaml alone may also be the file that runs are launched from.
  const auto is_run = [&](const fs::path& candidate) { return fs::exists(candidate / "events.jsonl", code); };
  if (is_run(path)) {
    throw ConfigError(folder.string() + ": a run's folder, not one that holds runs", "name the folder above it");
  }
  std::vector<RunFolder> folders;
  for (const std::string& name : run_names(path)) {
    if (holds_run(path / name)) folders.push_back({path / name});
  }
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(path, code)) {
    const bool numbered = run_number(entry.path().filename()).has_value();
    if (!numbered && entry.is_directory(code) && is_run(entry.path())) others.push_back(entry.path());
  }
  std::sort(others.begin(), others.end());
  for (const fs::path& other : others) folders.push_back({other});
  return folders;
}

RunFolder find_run(const std::string& text) {
  if (text.starts_with("task:")) return launcher_duties().run_of_task(text.substr(5));
  const std::string run = text.starts_with("run:") ? text.substr(4) : text;
  std::error_code code;
  if (const fs::path path = fs::absolute(run); fs::is_directory(path, code)) {
    if (holds_run(path)) return {path.lexically_normal()};
    if (run.find('/') != std::string::npos) {
      throw ConfigError(run + ": not a run's folder (it has neither experiment.yaml nor events.jsonl)");
    }
  }
  if (const fs::path path = fs::absolute(run); fs::is_regular_file(path, code)) {
    throw ConfigError(run + ": a file, not a run's folder", "give the folder that the run was written to");
  }
  const fs::path runs = fs::absolute(kRunsFolder);
  const std::vector<std::string> names = run_names(runs);
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const bool same_number = std::all_of(run.begin(), run.end(), [](unsigned char c) { return std::isdigit(c); }) &&
                             run_number(run) == run_number(*name);
    const auto dash = name->find('-');
    const bool same_name = dash != std::string::npos && name->substr(dash + 1) == folder_name(run);
    if (*name == run || same_number || same_name) return {runs / *name};
  }
  if (names.empty()) {
    throw ConfigError("no run '" + run + "': there is no run under " + runs.string(),
                      "give the path of a run's folder, or go to the folder you launched from");
  }
  std::string hint = "the newest is " + names.back();
  if (const auto whole = nearest(run, names)) {
    hint = "did you mean " + *whole + "?";
  } else {  // "fashion-mnits" should find 0007-fashion-mnist
    std::vector<std::string> bare;
    for (const std::string& name : names) bare.push_back(name.substr(std::min(name.find('-') + 1, name.size())));
    if (const auto part = nearest(run, bare)) {
      const auto at = static_cast<std::size_t>(std::find(bare.begin(), bare.end(), *part) - bare.begin());
      hint = "did you mean " + names[at] + "?";
    }
  }
  throw ConfigError("no run '" + run + "' under " + runs.string() + "; " + hint);
}

std::string shown_path(const fs::path& path) {
  std::error_code code;
  const fs::path relative = fs::relative(path, code);
  const std::string shown = code || relative.empty() || *relative.begin() == ".." ? path.string() : relative.string();
  const bool plain = std::all_of(shown.begin(), shown.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("._/+-,:=@").find(static_cast<char>(c)) != std::string_view::npos;
  });
  return plain ? shown : shell_quoted(shown);
}

std::string own_command() {
  // A wheel's command is a script that starts this program (python/command.py).
  const char* script = std::getenv("DTRAIN_COMMAND");
  const fs::path program = script == nullptr ? executable_path() : fs::path(script);
  const std::string name = program.filename();
  const char* variable = std::getenv("PATH");
  const std::string path = variable == nullptr ? "" : variable;
  std::error_code code;
  const fs::path found = fs::canonical(find_in_path(name, variable == nullptr ? nullptr : &path), code);
  return !code && found == program ? name : shown_path(program);
}

std::string reference_of(const RunFolder& folder) {
  std::error_code code;
  if (folder.path.parent_path() == fs::current_path(code) / "runs") {
    const std::string name = folder.path.filename();
    const std::size_t digits = name.find_first_not_of("0123456789");
    if (digits > 0 && digits != std::string::npos && name[digits] == '-') {
      const std::size_t first = name.find_first_not_of('0');
      if (first < digits) return name.substr(first, digits - first);
    }
  }
  return shown_path(folder.path);
}

RunState read_state(const RunFolder& folder) {
  RunState state;
  std::vector<Json> processes;
  bool resumes = false;  // the attempt goes on from a checkpoint: its ranks have not begun before they have read it
  profile::read_events(folder.path, [&](Json&& json) {
    const std::string event = text_at(json, "event");
    if (event == "run_ended") state.exit_code = static_cast<ExitCode>(value_at<int>(json, "exit_code").value_or(0));
    if (event == "attempt_failed") state.restarts = value_at<int>(json, "restart").value_or(state.restarts + 1);
    if (event == "continued") state.restarts = 0, ++state.continued;
    if (event == "attempt_started") resumes = json.contains("resume_from");
    if (event == "resumed" || (event == "rank_running" && !resumes)) state.trained = state.continued;
    if (event == "checkpoint_saved") state.last_saved = value_at<std::int64_t>(json, "step").value_or(0);
    state.started |= event == "run_started" || event == "rank_started";
    if (event != "submitted" && event != "run_started" && event != "rank_started") return;
    state.exit_code.reset();  // it goes on
    processes.push_back(std::move(json));
  });
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

namespace {

constexpr auto kRequestPollPeriod = std::chrono::milliseconds(100);

// Reads the events of a run, each once.
class EventReader {
 public:
  explicit EventReader(const RunFolder& folder) : fd_(open_regular(folder.events())) {}
  // Empty: there is no further event yet. DataError: a line is longer than any event.
  std::optional<Json> next() {
    for (;;) {
      if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
        profile::Damage damage;  // `dtrain runs` names it
        auto event = profile::parse_record(profile::RecordFile::kEvents, std::string_view(unread_).substr(0, end),
                                           "events.jsonl", damage);
        unread_.erase(0, end + 1);
        if (event) return event;
        continue;
      }
      if (unread_.size() > FileLines::kLongestLine) throw DataError("events.jsonl: a line is too long for an event");
      char piece[64 << 10];
      const ssize_t count = ::read(fd_.get(), piece, sizeof piece);
      if (count <= 0) return std::nullopt;
      unread_.append(piece, static_cast<std::size_t>(count));
    }
  }

 private:
  UniqueFd fd_;
  std::string unread_;
};

struct Ranks {
  std::set<int> started;
  Json first;  // rank 0's event
};

Ranks read_ranks(EventReader& events) {
  Ranks ranks;
  while (const auto event = events.next()) {
    const std::string name = text_at(*event, "event");
    if (name == "attempt_started") ranks = {};
    if (name != "rank_started") continue;
    const int rank = value_at<int>(*event, "rank").value_or(-1);
    ranks.started.insert(rank);
    if (rank == 0) ranks.first = *event;
  }
  return ranks;
}

// True if the process handles the signal. Without a handler the signal would end the process.
bool catches(pid_t pid, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("SigCgt:")) continue;
    const auto mask = std::stoull(line.substr(sizeof "SigCgt:" - 1), nullptr, 16);
    return (mask >> (signal - 1) & 1) != 0;
  }
  return false;
}

// True if the process is a rank of the run: the launcher has put the run's folder into its environment. A rank that no
// launcher of this host has started holds the run's events open.
bool belongs_to(pid_t pid, const RunFolder& folder) {
  const fs::path process = fs::path("/proc") / std::to_string(pid);
  std::ifstream file(process / "environ");
  std::error_code code;
  constexpr std::string_view kMark = "DTRAIN_RUN_DIR=";
  for (std::string variable; std::getline(file, variable, '\0');) {
    if (variable.starts_with(kMark) && fs::equivalent(variable.substr(kMark.size()), folder.path, code)) return true;
  }
  for (const auto& entry : fs::directory_iterator(process / "fd", code)) {
    if (fs::equivalent(entry.path(), folder.events(), code)) return true;
  }
  return false;
}

// The process is what a file says, so it gets the signal only if it is the rank itself.
void send(const RunFolder& folder, const Json& rank_0, int steps) {
  const std::string host = text_at(rank_0, "host");
  const pid_t pid = value_at<int>(rank_0, "pid").value_or(0);
  const std::string here = host::host_identity().name;
  const std::string whom = "rank 0 (process " + std::to_string(pid) + " on " + host + ")";
  if (host != here) {
    throw ConfigError(whom + " cannot be reached from " + here, "run this command on " + host + ", or send it SIGUSR2");
  }
  const std::uint64_t ticks = pid > 0 ? host::start_ticks(pid) : 0;
  if (ticks == 0 || ticks != value_at<std::uint64_t>(rank_0, "start_ticks")) {
    throw ConfigError(whom + " is not there any more, or not visible from here");
  }
  if (!belongs_to(pid, folder)) {
    throw ConfigError(whom + " is no rank of the run in " + folder.path.string() + ", though its events say so",
                      "if another user runs it, ask that user; otherwise do not trust this folder");
  }
  if (!catches(pid, SIGUSR2)) {
    throw ConfigError(whom + " cannot trace before training begins", "try again then");
  }
  sigval value{};
  value.sival_int = steps;
  if (::sigqueue(pid, SIGUSR2, value) != 0) throw SystemError("cannot send a signal to " + whom, errno);
}

}  // namespace

RequestedTrace request_trace(const RunFolder& folder, int steps, const std::function<void(const std::string&)>& say) {
  if (is_over(folder)) throw ConfigError("the run in " + folder.path.string() + " is over: nothing can be traced");
  EventReader events(folder);
  const Ranks ranks = read_ranks(events);
  if (ranks.first.is_null()) throw ConfigError("rank 0 of " + folder.path.string() + " has not started yet");
  send(folder, ranks.first, steps);
  RequestedTrace result;
  while (result.written.size() + result.failed.size() < ranks.started.size()) {
    const bool over = is_over(folder);  // asked first, so that events written before the end are read
    while (const auto event = events.next()) {
      const std::string name = text_at(*event, "event");
      const int rank = value_at<int>(*event, "rank").value_or(-1);
      const auto batch = [&](const char* key) { return value_at<std::int64_t>(*event, key).value_or(0); };
      if (name == "trace_refused" && event->contains("reason")) {
        throw Error("the run takes no trace: " + text_at(*event, "reason"));
      }
      if (name == "trace_refused") {
        throw Error("the run already traces, or will trace, batches " + std::to_string(batch("first_batch")) + " to " +
                    std::to_string(batch("last_batch")));
      }
      if (name == "trace_scheduled") {
        result.first_batch = batch("first_batch");
        result.last_batch = batch("last_batch");
        say("all ranks trace batches " + std::to_string(result.first_batch) + " to " +
            std::to_string(result.last_batch));
      }
      if (result.first_batch == 0) continue;
      if (name == "trace_written" && batch("first_batch") == result.first_batch) result.written.insert(rank);
      if (name == "trace_failed") result.failed.insert(rank);
    }
    if (over) break;
    std::this_thread::sleep_for(kRequestPollPeriod);
  }
  if (result.written.empty()) {
    throw Error(result.failed.empty() ? "the run ended before its traces were written"
                                      : "no rank could write its trace; the ranks' logs say why");
  }
  return result;
}

}  // namespace dtrain::rank
