#include "keeper/node_ranks.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>

#include <unistd.h>

#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/host/rank_threads.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/rank/model_files.h"
#include "dtrain/rank/resume.h"
#include "entrypoint.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;
using SteadyClock = std::chrono::steady_clock;

constexpr int kPollMs = 200;
constexpr Patience kPatienceWithoutHost{std::chrono::milliseconds(400), std::chrono::milliseconds(1200)};

int ranks_of_node(const config::Experiment& experiment, const rank::NodeEnvironment& node) {
  if (node.ranks_here > 0) return node.ranks_here;
  if (node.may_change()) {
    throw ConfigError("PET_NNODES=" + std::to_string(node.least) + ":" + std::to_string(node.nodes) +
                          " lets the number of hosts change, and nothing says how many ranks each of them has",
                      "set PET_NPROC_PER_NODE to a number");
  }
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

// Those by whose ranks the batch divides exactly: a run whose batches change with a host is another run. Virtual ranks
// divide it in the same way for any number of ranks up to theirs.
std::vector<int> numbers_of_hosts(const config::Experiment& experiment, const rank::NodeEnvironment& node, int ranks) {
  if (!node.may_change()) return {node.nodes};
  const std::string hosts_text = std::to_string(node.least) + " to " + std::to_string(node.nodes) + " hosts";
  const std::int64_t batch = experiment.global_batch_size;
  std::vector<int> numbers;
  std::vector<std::string> tried;
  for (int hosts = node.least; hosts <= node.nodes; ++hosts) {
    const int started = hosts * ranks;
    const bool divides = experiment.virtual_ranks > 0 ? started <= experiment.virtual_ranks : batch % started == 0;
    if (batch <= 0 || divides) numbers.push_back(hosts);
    tried.push_back(std::to_string(started));
  }
  if (!numbers.empty()) return numbers;
  if (experiment.virtual_ranks > 0) {
    throw ConfigError(experiment.file.string() + ": reproducibility.virtual_ranks is " +
                          std::to_string(experiment.virtual_ranks) + ", and " + hosts_text + " start at least " +
                          tried.front() + " ranks",
                      "set a smaller PET_NPROC_PER_NODE; another number of virtual ranks gives other bits");
  }
  throw ConfigError(experiment.file.string() + ": hyperparameters.global_batch_size: " + std::to_string(batch) +
                        " is not divided exactly by " + join(tried, ", ") + ", the numbers of ranks of " + hosts_text +
                        " with " + std::to_string(ranks) + " each",
                    "choose a batch size that is a multiple of one of them");
}

// PET_NNODES=MIN:MAX says it in hosts, resources.elastic in slots.
int least_hosts(const config::Experiment& experiment, const rank::NodeEnvironment& node, int ranks) {
  const auto& elastic = experiment.resources.elastic;
  if (!elastic) return node.least;
  if (node.may_change()) {
    config::refuse_elastic(experiment,
                           "PET_NNODES=" + std::to_string(node.least) + ":" + std::to_string(node.nodes) +
                               " says already how many hosts may train",
                           "leave one of them out");
  }
  const int all = node.nodes * ranks, most = experiment.resources.most_slots();
  if (all < elastic->min || all > most) {
    config::refuse_elastic(experiment,
                           std::to_string(elastic->min) + " to " + std::to_string(most) +
                               " slots may train, and all hosts have " + std::to_string(all),
                           "set elastic.min and elastic.max around it, or another PET_NPROC_PER_NODE");
  }
  return (elastic->min + ranks - 1) / ranks;
}

config::OnHostLoss on_host_loss(const config::Experiment& experiment, bool may_shrink) {
  using config::OnHostLoss;
  const OnHostLoss asked = experiment.recovery.on_host_loss;
  if (asked == OnHostLoss::kShrink && !may_shrink) {
    config::refuse_on_host_loss(experiment, "shrink does not say with how few slots or hosts the run may go on",
                                "set resources.elastic.min, or PET_NNODES=MIN:MAX");
  }
  if (asked != OnHostLoss::kAuto) return asked;
  return may_shrink ? OnHostLoss::kShrink : OnHostLoss::kWait;
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
  for (const std::string& option : evaluating_options(request)) arguments.push_back(option);
  return arguments;
}

// The arguments with which the ranks go on in the folder of the run that they have begun.
std::vector<std::string> arguments_in(const std::vector<std::string>& arguments, const fs::path& run_dir) {
  const auto names_a_run = [](const std::string& word) { return word == "--run-dir" || word == "--continue"; };
  std::vector<std::string> result = arguments;
  if (!run_dir.empty() && std::none_of(arguments.begin(), arguments.end(), names_a_run)) {
    result.insert(result.end(), {"--run-dir", run_dir.string(), "--or-continue"});
  }
  return result;
}

}  // namespace

NodePlan plan_node(const LaunchRequest& given, const rank::NodeEnvironment& node, const rank::Variables& variables) {
  LaunchRequest request = given;
  NodePlan plan;
  plan.run_dir = given.run_dir.empty() ? fs::path() : fs::absolute(given.run_dir);
  if (!given.continue_run.empty()) {
    const rank::ContinuedRun run = rank::read_continued_run(given.continue_run);
    plan.run_dir = run.folder.path;
    request.experiment_file = run.experiment_file;
    request.contents = run.contents;
    request.overrides = rank::merge_overrides(run.overrides, given.overrides);
  }
  plan.experiment = config::read_experiment(request.experiment_file, request.overrides, request.contents);
  rank::check_model_files(plan.experiment);
  plan.ranks_here = ranks_of_node(plan.experiment, node);
  rank::NodeEnvironment hosts = node;
  plan.least_hosts = hosts.least = least_hosts(plan.experiment, node, plan.ranks_here);
  plan.on_host_loss = on_host_loss(plan.experiment, hosts.may_change());
  plan.numbers_of_hosts = numbers_of_hosts(plan.experiment, hosts, plan.ranks_here);
  rank::check_mock(request.mock, plan.ranks_here * node.nodes);
  plan.command = entry_command(plan.experiment, variables);
  rank::Variables of_a_rank = variables;
  for (const auto& [name, value] : plan.experiment.environment_variables) of_a_rank[name] = value;
  plan.library_path = rank::find_libraries(plan.command.front(), of_a_rank);
  plan.arguments = rank_arguments(given);
  plan.threads = host::threads_of_children(host::process_cores(), plan.ranks_here);
  return plan;
}

int hosts_that_train(const NodePlan& plan, std::size_t present) {
  int most = 0;
  for (const int hosts : plan.numbers_of_hosts) {
    if (static_cast<std::size_t>(hosts) <= present) most = hosts;
  }
  return most;
}

Json to_json(const NodeEnd& end) {
  return {{"code", end.code},   {"failed", end.failed},     {"stopped", end.stopped},
          {"cause", end.cause}, {"may_pass", end.may_pass}, {"hangs", end.hangs}};
}

NodeEnd node_end_of(const Json& json) {
  return {.code = json.at("code").get<ExitCode>(),
          .failed = json.at("failed").get<bool>(),
          .stopped = json.at("stopped").get<bool>(),
          .cause = json.at("cause").get<std::string>(),
          .may_pass = json.at("may_pass").get<bool>(),
          .hangs = json.at("hangs").get<std::vector<Json>>()};
}

NodeRanks::NodeRanks(const NodePlan& plan, const rank::NodeEnvironment& node, const rank::Variables& variables,
                     const fs::path& run_dir, int restart)
    : waits_for_hosts_(plan.on_host_loss == config::OnHostLoss::kWait),
      hangs_(plan.experiment.recovery, node, restart) {
  for (int local = 0; local < plan.ranks_here; ++local) {
    const int rank = node.rank * plan.ranks_here + local;
    ProcessOptions options{.command = plan.command};
    const std::vector<std::string> arguments = arguments_in(plan.arguments, run_dir);
    options.command.insert(options.command.end(), arguments.begin(), arguments.end());
    rank::Variables& set = options.environment;
    set = host::thread_variables(variables, plan.experiment.environment_variables, plan.threads);
    if (!plan.library_path.empty()) set["LD_LIBRARY_PATH"] = plan.library_path;
    // torchrun sets the same variables, so scripts for torchrun find them.
    set["RANK"] = std::to_string(rank);
    set["WORLD_SIZE"] = std::to_string(plan.ranks_here * node.nodes);
    set["LOCAL_RANK"] = std::to_string(local);
    set["LOCAL_WORLD_SIZE"] = std::to_string(plan.ranks_here);
    set["GROUP_RANK"] = std::to_string(node.rank);
    set["MASTER_ADDR"] = node.master.name;
    set["MASTER_PORT"] = std::to_string(node.master.port);
    set["TORCHELASTIC_RESTART_COUNT"] = std::to_string(restart);
    set["DTRAIN_KEEPER_FD"] = std::to_string(RankProcess::kLinkFd);
    options.unset = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"};
    options.fds = {{1, STDOUT_FILENO}, {2, STDERR_FILENO}};
    ranks_.push_back(RankProcess::start(rank, std::move(options), [](const ProcessOptions& process) {
      return Standby::Started{Process::start(process)};
    }));
  }
}

NodeEnd NodeRanks::wait(rank::LaunchSignals& signals, rank::Keepers& keepers, rank::TrainerStatus& status,
                        NodeRecoveries& recoveries, const std::function<bool(bool trains)>& pauses) {
  bool lost = false;
  while (!all_ended()) {
    std::vector<pollfd> descriptors{{signals.fd(), POLLIN, 0}};
    if (!lost) descriptors.push_back({keepers.lost_fd(), POLLIN, 0});
    for (const RankProcess& rank : ranks_) {
      if (!rank.status()) descriptors.push_back({rank.process().pidfd(), POLLIN, 0});
      if (rank.link_fd() >= 0) descriptors.push_back({rank.link_fd(), POLLIN, 0});
    }
    ::poll(descriptors.data(), descriptors.size(), kPollMs);
    while (const auto signal = signals.next()) interrupt(*signal);
    read_links(status, recoveries);
    for (RankProcess& rank : ranks_) reap(rank);
    lost = lost || !keepers.lost().empty();
    if (lost && !failed_at_) failed_at_ = SteadyClock::now();
    if (!failed_at_ && !interrupted_at_) look_for_hangs(keepers);
    if (!failed_at_ && !interrupted_at_) pause_if(pauses);
    end_what_hangs(lost);
  }
  read_links(status, recoveries);
  return end();
}

NodeEnd NodeRanks::end() const {
  NodeEnd end{.stopped = interrupted_at_.has_value()};
  if (hang_) {
    end.cause = hang_->failure.cause;
    end.may_pass = true;
    end.hangs = hang_->events;
  }
  bool bad_input = false;
  for (const RankProcess& rank : ranks_) {
    const ExitStatus& status = *rank.status();
    end.code = std::max(end.code, status.signal != 0 ? ExitCode::kInterrupted : status.exit_code());
    if (!is_failure(status)) continue;
    end.failed = true;
    bad_input = bad_input || status.exit_code() == ExitCode::kBadInput;
    const std::string name = "rank " + std::to_string(rank.rank());
    Failure failure;
    if (rank.error() && rank.error()->primary) {
      failure = reported_failure(name, rank.rank(), *rank.error());
    } else if (status.signal != 0 && !rank.was_asked_to_end()) {
      failure = {.cause = name + " was " + status.describe(), .may_pass = true};
    } else if (!rank.error() && !rank.was_asked_to_end() && !rank.finished()) {
      failure = {.cause = name + " ended before the run was over: " + status.describe()};
    }
    // A cause that does not pass counts before one that may.
    if (failure.cause.empty() || (!end.cause.empty() && (failure.may_pass || !end.may_pass))) continue;
    end.cause = failure.cause;
    end.may_pass = failure.may_pass;
  }
  if (end.failed) end.code = bad_input ? ExitCode::kBadInput : ExitCode::kRunFailed;
  return end;
}

void NodeRanks::pause_if(const std::function<bool(bool trains)>& pauses) {
  if (!pauses(trains_)) return;
  for (RankProcess& rank : ranks_) {
    if (!rank.status()) rank.pause();
  }
}

void NodeRanks::look_for_hangs(rank::Keepers& keepers) {
  std::vector<WatchedRank> watched;
  for (RankProcess& rank : ranks_) watched.push_back(rank.watched());
  hang_ = hangs_.look(watched, keepers, run_dir_);
  if (!hang_) return;
  std::fprintf(stderr, "dtrain: %s\n", hang_->failure.cause.c_str());
  failed_at_ = SteadyClock::now();
}

bool NodeRanks::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.status().has_value(); });
}

// A signal that is passed on may reach a rank that is ending already, and then kills it.
bool NodeRanks::is_failure(const ExitStatus& status) const {
  const bool asked = interrupted_at_ && !failed_at_;
  const bool by_us = status.signal == SIGTERM || status.signal == SIGINT || status.signal == SIGKILL;
  if (status.signal != 0) return !(asked && by_us);
  const ExitCode code = status.exit_code();
  return code != ExitCode::kDone && code != ExitCode::kPreempted && code != ExitCode::kInterrupted;
}

void NodeRanks::read_links(rank::TrainerStatus& status, NodeRecoveries& recoveries) {
  for (RankProcess& rank : ranks_) {
    const RankNews news = rank.read_link();
    if (!news.folder.empty()) {
      run_dir_ = news.folder;
      if (rank.rank() == 0) recoveries.begin_attempt(run_dir_, news.step);
    }
    if (!news.progress) continue;
    trains_ = true;
    status.take(*news.progress, rank::RunFolder{run_dir_}.metrics());
    recoveries.take(*news.progress);
  }
}

void NodeRanks::reap(RankProcess& rank) {
  if (rank.status() || !rank.reap() || !is_failure(*rank.status())) return;
  // A rank that ends with an exit code has said why.
  if (rank.status()->signal != 0 && !rank.was_asked_to_end() && !hang_) {
    std::fprintf(stderr, "dtrain: rank %d was %s\n", rank.rank(), rank.status()->describe().c_str());
  }
  if (!failed_at_) failed_at_ = SteadyClock::now();
}

void NodeRanks::interrupt(int signal) {
  const auto now = SteadyClock::now();
  constexpr std::chrono::milliseconds kTogether{500};  // to the process group, and again by a parent
  if (interrupted_at_ && now - *interrupted_at_ < kTogether) return;
  const bool again = interrupted_at_.has_value();
  interrupted_at_ = now;
  const std::string name = rank::signal_name(signal);
  std::fprintf(stderr, "%s\n",
               again ? ("dtrain: " + name + " again: killing the ranks").c_str()
                     : ("dtrain: " + name + ": stopping after the current step; a second one kills the ranks").c_str());
  for (RankProcess& rank : ranks_) {
    if (rank.status()) continue;
    again ? rank.process().kill_group(SIGKILL) : rank.process().kill(signal == SIGINT ? SIGINT : SIGTERM);
  }
}

// Where nobody waits for a lost host, what ranks save as survivors does not count, and a checkpoint that is being
// written lacks the part of the lost ranks: they need not be waited for.
void NodeRanks::end_what_hangs(bool without_host) {
  if (!failed_at_) return;
  const auto since = SteadyClock::now() - *failed_at_;
  for (RankProcess& rank : ranks_) {
    if (rank.status()) continue;
    const Patience& patience = rank.saves() ? kPatienceWithSavingRank : kPatienceWithRank;
    rank.end(since, without_host && !waits_for_hosts_ ? kPatienceWithoutHost : patience);
  }
}

}  // namespace dtrain::launcher
