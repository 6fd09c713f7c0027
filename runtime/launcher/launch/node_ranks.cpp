#include "launch/local_ranks.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/network.h"
#include "dtrain/host/rank_threads.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/rank/model_files.h"
#include "dtrain/rank/resume.h"
#include "dtrain/rank/screen.h"
#include "dtrain/rank/stop_requests.h"
#include "entrypoint.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;
using SteadyClock = std::chrono::steady_clock;

constexpr int kPollMs = 200;

// The settings with which this host's ranks start.
struct NodePlan {
  config::Experiment experiment;
  std::vector<std::string> command;
  std::string library_path;  // empty: unchanged
  int ranks_here = 1;
  int threads = 1;  // of each rank
};

void check_request(const LaunchRequest& request) {
  const auto refuse = [](const std::string& option, const std::string& why) {
    throw ConfigError(option + " does not go with PET_NNODES, which says that this is one of several hosts", why);
  };
  if (request.detach) refuse("--detach", "run it in the foreground: the pod is what runs in the background");
  if (!request.cluster.empty()) refuse("--cluster", "every host starts its own ranks; unset PET_NNODES to launch them");
  if (request.json) refuse("--json", "leave it out");
}

int ranks_of_node(const config::Experiment& experiment, const rank::NodeEnvironment& node) {
  if (node.ranks_here > 0) return node.ranks_here;
  const int slots = experiment.resources.slots_per_trial;
  if (slots > 0 && slots % node.nodes == 0) return slots / node.nodes;
  const std::string file = experiment.file.string();
  if (slots <= 0) {
    throw ConfigError(
        file + ": resources.slots_per_trial: auto is for one host, and PET_NNODES says " + std::to_string(node.nodes),
        "set PET_NPROC_PER_NODE to the number of ranks on each host, or slots_per_trial to a number");
  }
  throw ConfigError(file + ": resources.slots_per_trial: " + std::to_string(slots) + " ranks cannot be divided among " +
                        std::to_string(node.nodes) + " hosts (PET_NNODES)",
                    "set PET_NPROC_PER_NODE to the number of ranks on each host");
}

// Returns the arguments of a rank program: the experiment, the run and its options.
std::vector<std::string> rank_arguments(const LaunchRequest& request) {
  std::vector<std::string> arguments;
  if (!request.continue_run.empty()) {
    arguments = {"--continue", request.continue_run};
  } else {
    arguments.push_back(fs::absolute(request.experiment_file).lexically_normal().string());
    if (!request.contents.empty()) arguments.insert(arguments.end(), {"--contents", request.contents.string()});
    // A pod that is started again goes on with the run.
    if (!request.run_dir.empty()) {
      arguments.insert(arguments.end(), {"--run-dir", fs::absolute(request.run_dir).string(), "--or-continue"});
    }
  }
  for (const std::string& override_text : request.overrides)
    arguments.insert(arguments.end(), {"--set", override_text});
  if (request.mock.any()) arguments.insert(arguments.end(), {"--mock", to_string(request.mock)});
  return arguments;
}

NodePlan plan_node(const LaunchRequest& given, const rank::NodeEnvironment& node, const rank::Variables& variables) {
  LaunchRequest request = given;
  if (!given.continue_run.empty()) {
    const rank::ContinuedRun run = rank::read_continued_run(given.continue_run);
    request.experiment_file = run.experiment_file;
    request.contents = run.contents;
    request.overrides = rank::merge_overrides(run.overrides, given.overrides);
  }
  NodePlan plan;
  plan.experiment = config::read_experiment(request.experiment_file, request.overrides, request.contents);
  rank::check_model_files(plan.experiment);
  plan.ranks_here = ranks_of_node(plan.experiment, node);
  rank::check_mock(request.mock, plan.ranks_here * node.nodes);
  plan.command = entry_command(plan.experiment, variables);
  rank::Variables of_a_rank = variables;
  for (const auto& [name, value] : plan.experiment.environment_variables) of_a_rank[name] = value;
  plan.library_path = rank::find_libraries(plan.command.front(), of_a_rank);
  const std::vector<std::string> arguments = rank_arguments(given);
  plan.command.insert(plan.command.end(), arguments.begin(), arguments.end());
  plan.threads = host::threads_of_children(host::process_cores(), plan.ranks_here);
  return plan;
}

std::string text_of(const NodePlan& plan, const rank::NodeEnvironment& node) {
  const int first = node.rank * plan.ranks_here;
  const int last = first + plan.ranks_here - 1;
  return "host        " + host::host_identity().name + ", " + std::to_string(node.rank + 1) + " of " +
         std::to_string(node.nodes) + ": " + (last == first ? "rank " : "ranks ") + std::to_string(first) +
         (last == first ? "" : " to " + std::to_string(last)) + " of " + std::to_string(plan.ranks_here * node.nodes) +
         ", " + count_of(plan.threads, "thread") + " each\n" + "rank 0      " + node.master.name + ":" +
         std::to_string(node.master.port) + "\n";
}

class NodeRanks {
 public:
  NodeRanks(const NodePlan& plan, const rank::NodeEnvironment& node, const rank::Variables& variables) {
    for (int local = 0; local < plan.ranks_here; ++local) {
      ProcessOptions options{.command = plan.command};
      rank::Variables& set = options.environment;
      set = host::thread_variables(variables, plan.experiment.environment_variables, plan.threads);
      if (!plan.library_path.empty()) set["LD_LIBRARY_PATH"] = plan.library_path;
      // torchrun sets the same variables, so scripts for torchrun find them.
      set["RANK"] = std::to_string(node.rank * plan.ranks_here + local);
      set["WORLD_SIZE"] = std::to_string(plan.ranks_here * node.nodes);
      set["LOCAL_RANK"] = std::to_string(local);
      set["LOCAL_WORLD_SIZE"] = std::to_string(plan.ranks_here);
      set["GROUP_RANK"] = std::to_string(node.rank);
      set["MASTER_ADDR"] = node.master.name;
      set["MASTER_PORT"] = std::to_string(node.master.port);
      options.unset = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"};
      options.fds = {{0, input_.get()}, {1, STDOUT_FILENO}, {2, STDERR_FILENO}};
      ranks_.push_back({node.rank * plan.ranks_here + local, Process::start(options)});
    }
  }

  // Returns the exit code once all have ended.
  ExitCode wait(rank::LaunchSignals& signals) {
    while (!all_ended()) {
      std::vector<pollfd> descriptors{{signals.fd(), POLLIN, 0}};
      for (const Rank& rank : ranks_) {
        if (!rank.status) descriptors.push_back({rank.process.pidfd(), POLLIN, 0});
      }
      ::poll(descriptors.data(), descriptors.size(), kPollMs);
      while (const auto signal = signals.next()) interrupt(*signal);
      for (Rank& rank : ranks_) reap(rank);
      end_what_hangs();
    }
    auto code = ExitCode::kDone;  // the highest: 130 rather than 75
    bool failed = false;
    for (const Rank& rank : ranks_) {
      failed = failed || is_failure(*rank.status);
      code = std::max(code, rank.status->signal != 0 ? ExitCode::kInterrupted : rank.status->exit_code());
    }
    return failed ? failure_code_ : code;
  }

 private:
  struct Rank {
    int rank;
    Process process;
    std::optional<ExitStatus> status = {};
    HangingProcess hanging = {};
  };

  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.status.has_value(); });
  }

  // A signal that is passed on may reach a rank that is ending already, and then kills it.
  bool is_failure(const ExitStatus& status) const {
    const bool asked = interrupted_at_ && !failed_at_;
    const bool by_us = status.signal == SIGTERM || status.signal == SIGINT || status.signal == SIGKILL;
    if (status.signal != 0) return !(asked && by_us);
    const ExitCode code = status.exit_code();
    return code != ExitCode::kDone && code != ExitCode::kPreempted && code != ExitCode::kInterrupted;
  }

  void reap(Rank& rank) {
    if (rank.status) return;
    rank.status = rank.process.wait(std::chrono::milliseconds(0));
    if (!rank.status || !is_failure(*rank.status)) return;
    // A rank that ends with an exit code has said why.
    if (rank.status->signal != 0) {
      std::fprintf(stderr, "dtrain: rank %d was %s\n", rank.rank, rank.status->describe().c_str());
    }
    if (failed_at_) return;
    failed_at_ = SteadyClock::now();
    const bool bad_input = rank.status->exit_code() == ExitCode::kBadInput;
    failure_code_ = bad_input ? ExitCode::kBadInput : ExitCode::kRunFailed;
  }

  void interrupt(int signal) {
    const auto now = SteadyClock::now();
    constexpr std::chrono::milliseconds kTogether{500};  // to the process group, and again by a parent
    if (interrupted_at_ && now - *interrupted_at_ < kTogether) return;
    const bool again = interrupted_at_.has_value();
    interrupted_at_ = now;
    const std::string name = rank::signal_name(signal);
    std::fprintf(stderr, "%s\n",
                 again
                     ? ("dtrain: " + name + " again: killing the ranks").c_str()
                     : ("dtrain: " + name + ": stopping after the current step; a second one kills the ranks").c_str());
    for (Rank& rank : ranks_) {
      if (rank.status) continue;
      again ? rank.process.kill_group(SIGKILL) : rank.process.kill(signal == SIGINT ? SIGINT : SIGTERM);
    }
  }

  void end_what_hangs() {
    if (!failed_at_) return;
    for (Rank& rank : ranks_) {
      if (!rank.status) rank.hanging.end(rank.process, SteadyClock::now() - *failed_at_, kPatienceWithRankOfPod);
    }
  }

  const UniqueFd input_{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  std::vector<Rank> ranks_;
  std::optional<SteadyClock::time_point> failed_at_;
  ExitCode failure_code_ = ExitCode::kRunFailed;  // of the rank that failed first
  std::optional<SteadyClock::time_point> interrupted_at_;
};

}  // namespace

ExitCode launch_node(const LaunchRequest& request, const rank::NodeEnvironment& node,
                     const rank::Variables& variables) {
  check_request(request);
  const NodePlan plan = plan_node(request, node, variables);
  if (request.dry_run) {
    std::vector<std::string> shown;
    for (const std::string& word : plan.command) shown.push_back(config::shown_override(word));
    rank::print(text_of(plan, node) + "command     " + join(shown, " ") + "\n");
    return ExitCode::kDone;
  }
  if (const std::string warning = script_warning(plan.command); !warning.empty()) {
    std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
  }
  rank::print(text_of(plan, node));
  rank::LaunchSignals signals;
  NodeRanks ranks(plan, node, variables);
  return ranks.wait(signals);
}

}  // namespace dtrain::launcher
