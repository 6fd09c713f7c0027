#include <fcntl.h>
#include <poll.h>

#include <cerrno>
#include <csignal>

#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/screen.h"
#include "short_runs.h"

namespace dtrain::run {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLinesOfAFailure = 40;
constexpr int kMostFolders = 100'000;
constexpr int kAskMs = 250;

// Returns RUN's experiment file, unchanged: files that it names may be beside it, not beside RUN's copy.
fs::path experiment_file(const RunFolder& run, const Json& plan) {
  fs::path file = text_at(plan, "experiment_file");
  std::error_code code;
  if (file.empty() || !fs::is_regular_file(file, code)) {
    throw ConfigError(run.path.string() + ": its experiment file does not exist here: " + file.string(),
                      "what-if --verify starts the experiment again, so it needs the machine and the files of the run");
  }
  if (read_file(file) != read_file(run.experiment())) {
    throw ConfigError(
        file.string() + " has changed since " + run.path.string() + " was launched with it",
        "launch it again and verify that run, or put " + run.experiment().string() + " back in its place");
  }
  return file;
}

UniqueFd made(const fs::path& file) {
  UniqueFd result(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!result) throw SystemError("cannot write " + file.string(), errno);
  return result;
}

// Returns the value of sharded_optimizer that the run's comparison of strategies chose; empty if it made none.
std::string decided_strategy(const analysis::RunProfile& profile) {
  const std::string strategy = text_at(object_at(profile.plan, "strategy"), "strategy");
  const Json& optimizations = object_at(profile.experiment, "optimizations");
  if (strategy.empty() || text_at(optimizations, "sharded_optimizer") != "auto") return {};
  return strategy == "sharded" ? "true" : "false";
}

}  // namespace

void make_short(std::vector<std::string>& command, std::int64_t steps) {
  const std::string length = "searcher.max_length.batches=" + std::to_string(steps);
  for (const std::string& value :
       {length, std::string("min_validation_period.batches=0"), std::string("perform_initial_validation=false"),
        std::string("profiling.trace=null")}) {  // traced batches are slower
    command.insert(command.end(), {"--set", value});
  }
}

std::vector<std::string> short_launch(const RunFolder& run, const analysis::RunProfile& profile, int steps,
                                      const fs::path& cluster) {
  const Json& plan = profile.plan;
  const std::string started_by = text_at(plan, "started_by");
  if (started_by != "dtrain launch") {
    throw ConfigError(run.path.string() +
                          (started_by.empty() ? " does not record what started it" : " was started by " + started_by) +
                          ", and what-if --verify starts runs with dtrain launch",
                      "launch the experiment with dtrain launch and verify that run; or start the program as before "
                      "with --mock, and compare the median steps yourself");
  }
  if (const std::string mock = text_at(object_at(plan, "mock"), "what"); !mock.empty()) {
    throw ConfigError(run.path.string() + " is a mock run (" + mock + ") itself",
                      "name the run whose predictions are to be verified");
  }
  std::vector<std::string> command{executable_path().string(), "launch", experiment_file(run, plan).string()};
  const auto set = [&](const std::string& value) {
    command.emplace_back("--set");
    command.push_back(value);
  };
  for (const Json& value : list_at(plan, "overrides")) {
    if (value.is_string()) set(value.get<std::string>());
  }
  make_short(command, steps);
  if (const std::string strategy = decided_strategy(profile); !strategy.empty()) {
    set("optimizations.sharded_optimizer=" + strategy);
    // Over several hosts a sharded optimizer excludes auto-tuned fusion, which `auto` tuned for replicated updates.
    if (strategy == "true" && profile.agents.size() > 1) set("optimizations.auto_tune_tensor_fusion=false");
  }
  const fs::path own = text_at(plan, "cluster_file");
  std::error_code code;
  if (cluster.empty() && !own.empty() && !fs::is_regular_file(own, code)) {
    throw ConfigError(
        run.path.string() + ": the cluster file it was launched with does not exist here: " + own.string(),
        "name the one to use with --cluster");
  }
  const fs::path& file = cluster.empty() ? own : cluster;
  if (!file.empty()) command.insert(command.end(), {"--cluster", file.string()});
  return command;
}

fs::path make_what_if_folder(const RunFolder& run) {
  const fs::path all = run.path / "what-if";
  make_folder(all);
  for (int number = 1; number < kMostFolders; ++number) {
    fs::path folder = all / std::to_string(number);
    if (::mkdir(folder.c_str(), 0777) == 0) return folder;
    if (errno != EEXIST) throw SystemError("cannot make the folder " + folder.string(), errno);
  }
  throw Error(all.string() + " holds too many verifications", "remove some");
}

ShortRuns::ShortRuns(std::vector<std::string> launch, fs::path folder)
    : launch_(std::move(launch)), folder_(std::move(folder)) {}

bool ShortRuns::run(const std::string& name, const Mock& mock, const std::string& set) {
  std::vector<std::string> options;
  if (!set.empty()) options.insert(options.end(), {"--set", set});
  if (mock.any()) options.insert(options.end(), {"--mock", to_string(mock)});
  return run(name, options);
}

bool ShortRuns::run(const std::string& name, const std::vector<std::string>& more,
                    const std::function<bool()>& has_enough) {
  if (signals_.next()) return false;
  const fs::path said = folder_ / (name + ".err");
  const UniqueFd output = made(folder_ / (name + ".out"));
  const UniqueFd errors = made(said);
  const UniqueFd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ProcessOptions options;
  options.command = launch_;
  options.command.insert(options.command.end(), {"--run-dir", (folder_ / name).string()});
  options.command.insert(options.command.end(), more.begin(), more.end());
  options.fds = {{0, input.get()}, {1, output.get()}, {2, errors.get()}};
  Process process = Process::start(options);
  const auto kill_ranks = [&] {  // two unlike signals: the launcher gets each, and kills its ranks after the second
    process.kill(SIGINT);
    process.kill(SIGTERM);
  };

  bool interrupted = false;
  bool enough = false;
  std::optional<ExitStatus> status;
  while (!(status = process.wait(std::chrono::milliseconds(0)))) {
    const bool asks = has_enough && !enough && !interrupted;
    pollfd fds[] = {{signals_.fd(), POLLIN, 0}, {process.pidfd(), POLLIN, 0}};
    ::poll(fds, 2, asks ? kAskMs : -1);
    while (const auto signal = signals_.next()) {
      interrupted = true;
      // Without has_enough the launcher stops its ranks after their step; a second signal kills them.
      has_enough ? kill_ranks() : process.kill(*signal);
    }
    if (!asks || interrupted || !has_enough()) continue;
    enough = true;
    kill_ranks();
  }
  if (interrupted) return false;
  if (enough || status->success()) return true;
  const std::string cause = "the run " + (folder_ / name).string() + " failed (" + status->describe() +
                            "); it said last:\n  " + join(last_lines(said, kLinesOfAFailure), "\n  ");
  if (status->exit_code() == ExitCode::kBadInput) throw ConfigError(cause);
  throw Error(cause);
}

}  // namespace dtrain::run
