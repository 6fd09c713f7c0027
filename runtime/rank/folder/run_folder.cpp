// The folder of a run, and how runs are found by names and numbers.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <sys/file.h>
#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/processes.h"
#include "dtrain/profile/event_file.h"
#include "dtrain/profile/run_records.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/launcher_duties.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::rank {

namespace {

namespace fs = std::filesystem;

constexpr const char* kRunsFolder = "runs";

// "Fashion MNIST (CNN)" -> "fashion-mnist-cnn"
std::string folder_name(const std::string& name) {
  std::string result;
  for (const char letter : name) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) || letter == '.') {
      result += static_cast<char>(std::tolower(byte));
    } else if (!result.empty() && result.back() != '-') {
      result += '-';
    }
  }
  result = result.substr(0, 60);
  while (!result.empty() && (result.back() == '-' || result.back() == '.')) result.pop_back();
  while (!result.empty() && result.front() == '.') result.erase(0, 1);
  return result.empty() ? "run" : result;
}

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

// Only one process at a time gets a number: two runs of different names must not get the same one.
fs::path make_numbered(const std::string& name) {
  const fs::path runs = fs::absolute(kRunsFolder);
  make_folder(runs);
  const UniqueFd lock(::open((runs / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!lock || ::flock(lock.get(), LOCK_EX) != 0) {
    throw SystemError("cannot lock " + (runs / ".lock").string(), errno, "give a folder with --run-dir");
  }
  const auto names = run_names(runs);
  const int number = names.empty() ? 1 : *run_number(names.back()) + 1;
  char prefix[16];
  std::snprintf(prefix, sizeof prefix, "%04d-", number);
  fs::path path = runs / (prefix + folder_name(name));
  if (::mkdir(path.c_str(), 0777) != 0) throw SystemError("cannot make the run's folder " + path.string(), errno);
  return path;
}

bool holds_run(const fs::path& path) {
  std::error_code code;
  return fs::exists(path / "experiment.yaml", code) || fs::exists(path / "events.jsonl", code);
}

}  // namespace

std::optional<int> RunFolder::number() const {
  return run_number(path.filename());
}

fs::path RunFolder::metrics_events() const {
  return path / profile::kEventsFolder / profile::kMetricsEvents;
}

fs::path RunFolder::log(int rank) const {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%04d.log", rank);
  return logs() / name;
}

RunFolder create_run_folder(const fs::path& requested, const std::string& name, const std::string& experiment_text,
                            mode_t private_mode) {
  RunFolder folder;
  if (requested.empty()) {
    folder.path = make_numbered(name);
  } else {
    folder.path = fs::absolute(requested).lexically_normal();
    make_folder(folder.path);
  }
  // The first to create this file owns the folder: of two runs that ask for one folder, the second is refused.
  const bool has_events = fs::exists(folder.events());
  const UniqueFd claim(has_events ? -1
                                  : ::open(folder.experiment().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (has_events || (!claim && errno == EEXIST)) {
    throw ConfigError("--run-dir: " + folder.path.string() + " already holds a run",
                      "give another folder, or leave --run-dir out to get the next one under runs/");
  }
  if (!claim) throw SystemError("cannot write " + folder.experiment().string(), errno);
  write_file_atomic(folder.experiment(), experiment_text, private_mode);
  make_folder(folder.logs());
  make_folder(folder.profile());
  return folder;
}

void share_new_files(const config::Experiment& experiment) {
  if (!experiment.share_with_group) return;
  constexpr mode_t kGroupReads = 0050;
  ::umask(::umask(0) & ~kGroupReads);
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

// events.jsonl: how lines are written, and the state of a run that they tell.

namespace {

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

namespace fs = std::filesystem;

constexpr const char* kDeleted = " (deleted)";  // the kernel's words
constexpr const char* kMoved = "was moved to ";

}  // namespace

FolderWatch::FolderWatch(fs::path folder)
    : folder_(std::move(folder)), fd_(::open(folder_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
  struct stat held {};
  if (!fd_ || ::fstat(fd_.get(), &held) != 0) {
    throw SystemError("cannot open the run's folder " + folder_.string(), errno);
  }
  // The name is the same on all ranks, and not that of an earlier run of this path.
  substitute_ = folder_.parent_path() / ("lost-" + folder_.filename().string() + "-" + std::to_string(held.st_ino));
}

std::string FolderWatch::gone() const {
  struct stat held {};
  struct stat there {};
  if (!fd_ || ::fstat(fd_.get(), &held) != 0) return {};
  if (::stat(folder_.c_str(), &there) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) return {};
  } else if (there.st_dev == held.st_dev && there.st_ino == held.st_ino) {
    return {};
  }
  std::error_code code;
  const std::string now = fs::read_symlink("/proc/self/fd/" + std::to_string(fd_.get()), code).string();
  if (held.st_nlink == 0 || now.empty() || now.ends_with(kDeleted) || now == folder_) return "was removed";
  return kMoved + now;
}

std::string FolderWatch::warning(const std::string& gone) const {
  const bool is_elsewhere = gone.starts_with(kMoved);
  return "the run's folder " + folder_.string() + " " + gone +
         " while the run goes on: checkpoints and new files have no place. " +
         (is_elsewhere ? "Move it back; if it is not there at the end, the final weights go to "
                       : "The final weights will go to ") +
         substitute_.string();
}

std::string FolderWatch::error(const std::string& gone) const {
  std::string text = "the run's folder " + folder_.string() + " " + gone + " while the run went on";
  const fs::path weights = substitute_ / "checkpoints" / "final" / checkpoints::kModelFile;
  std::error_code code;
  if (fs::exists(weights, code)) text += "; its final weights are in " + weights.string();
  return text;
}

}  // namespace dtrain::rank
