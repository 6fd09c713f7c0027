// The folder of a run (run_folder.h), and how runs and tasks are found by names and numbers. find_run() finds the run
// of a task, and find_task() the task of a run, so both are here (user_ledger.h).
#include "dtrain/run/run_folder.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/analysis/event_file.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/run/user_ledger.h"
#include "environment.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRunsFolder = "runs";
constexpr const char* kTasksThereAre = "dtrain task list shows those there are";

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

scheduler::Task task_of_number(scheduler::Ledger& ledger, const std::string& number) {
  const auto id = to_number<scheduler::TaskId>(number);
  if (!id) {
    throw ConfigError("'" + number + "' is not the number of a task",
                      "give its number (127 or task:127), or a run that it is (run:3, run:NAME)");
  }
  auto found = ledger.find(*id);
  if (!found) throw ConfigError("there is no task " + number, kTasksThereAre);
  return *std::move(found);
}

scheduler::Task task_of_run(scheduler::Ledger& ledger, const RunFolder& folder) {
  std::optional<scheduler::Task> found;
  ledger.visit(scheduler::Which::kAll, [&](scheduler::Task&& task) {
    if (task.run_dir == folder.path && (!found || !has_ended(task.state) || has_ended(found->state))) {
      found = std::move(task);
    }
  });
  if (!found) throw ConfigError("no task in this ledger belongs to the run " + folder.path.string(), kTasksThereAre);
  return *std::move(found);
}

}  // namespace

std::optional<int> RunFolder::number() const {
  return run_number(path.filename());
}

fs::path RunFolder::metrics_events() const {
  return path / analysis::kEventsFolder / analysis::kMetricsEvents;
}

fs::path RunFolder::log(int rank) const {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%04d.log", rank);
  return logs() / name;
}

RunFolder create_run_folder(const fs::path& requested, const std::string& name, const std::string& experiment_text) {
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
                                  : ::open(folder.experiment().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (has_events || (!claim && errno == EEXIST)) {
    throw ConfigError("--run-dir: " + folder.path.string() + " already holds a run",
                      "give another folder, or leave --run-dir out to get the next one under runs/");
  }
  if (!claim) throw SystemError("cannot write " + folder.experiment().string(), errno);
  write_file_atomic(folder.experiment(), experiment_text);
  make_folder(folder.logs());
  make_folder(folder.profile());
  return folder;
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
  const auto is_run = [&](const fs::path& one) { return fs::exists(one / "events.jsonl", code); };
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
  if (text.starts_with("task:")) return run_of_task(text.substr(5));
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

scheduler::Ledger open_user_ledger(const Clock& clock) {
  return scheduler::Ledger::open(state_folder(process_variables()), clock);
}

scheduler::Task find_task(scheduler::Ledger& ledger, const std::string& text) {
  if (text.starts_with("run:")) return task_of_run(ledger, find_run(text));
  return task_of_number(ledger, text.starts_with("task:") ? text.substr(5) : text);
}

RunFolder run_of_task(const std::string& number) {
  const SystemClock clock;
  scheduler::Ledger ledger = open_user_ledger(clock);
  RunFolder folder{task_of_number(ledger, number).run_dir};
  std::error_code code;
  if (!std::filesystem::is_directory(folder.path, code)) {
    throw ConfigError("the run of task " + number + ", " + folder.path.string() + ", is not there any more");
  }
  return folder;
}

}  // namespace dtrain::run
