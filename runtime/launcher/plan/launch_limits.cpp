#include "plan/launch_plan.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/host/rank_threads.h"
#include "machine_limits.h"
#include "network/link_meter.h"

namespace dtrain::launcher {
namespace {

using namespace std::chrono_literals;

constexpr auto kHostGreets = 15s;
constexpr auto kHostMeasures = 90s;  // with the wait for another process that measures there

struct HostOfRun {
  std::string name;    // the host's name in the ranks' placement
  std::string remote;  // the host's name for the remote shell; empty: this host
  RanksOfHost ranks;
};

std::optional<int> threads_of_user(const LaunchPlan& plan, rank::Variables variables) {
  for (const auto& [name, value] : plan.experiment.variables_of_ranks(plan.on_gpus())) variables[name] = value;
  return host::threads_of_user(variables);
}

// Returns the number of threads that libtorch takes in the rank's process; 0: its host decides.
int threads_of(const LaunchPlan& plan, const rank::RankPlacement& rank, const rank::Variables& variables) {
  return threads_of_user(plan, variables).value_or(rank.threads);
}

// True unless the user has set the number of threads: only then may ranks try more than one thread for a core.
bool may_try_siblings(const LaunchPlan& plan, const rank::Variables& variables) {
  return !threads_of_user(plan, variables);
}

// Returns the hosts in the order of their first ranks.
std::vector<HostOfRun> hosts_of_run(const PlacedLaunch& plan, const rank::Variables& variables) {
  std::vector<HostOfRun> hosts;
  for (const rank::RankPlacement& rank : plan.ranks) {
    auto host =
        std::find_if(hosts.begin(), hosts.end(), [&](const HostOfRun& known) { return known.name == rank.host; });
    if (host == hosts.end()) {
      HostOfRun new_host{.name = rank.host, .remote = rank.host == plan.host ? "" : rank.host, .ranks = {}};
      new_host.ranks.threads = threads_of(plan, rank, variables);
      new_host.ranks.most_threads = may_try_siblings(plan, variables) ? rank.most_threads : new_host.ranks.threads;
      new_host.ranks.ranks = 0;
      new_host.ranks.program = plan.command.front();
      if (const scheduler::ClusterAgent* agent = plan.find_agent(rank.agent)) {
        new_host.ranks.of_cores = agent->of_cores;
        new_host.ranks.slots = agent->of_cores ? 0 : agent->agent.slots;
      }
      hosts.push_back(std::move(new_host));
      host = hosts.end() - 1;
    }
    ++host->ranks.ranks;
    if (!rank.cpus.empty()) host->ranks.cpus.push_back(rank.cpus);
  }
  for (HostOfRun& host : hosts) {
    if (std::cmp_not_equal(host.ranks.cpus.size(), host.ranks.ranks)) host.ranks.cpus.clear();
  }
  return hosts;
}

// `dtrain host-probe` on another host, which has been asked.
struct Asked {
  const HostOfRun* host;
  ProbeSession session;
};

std::vector<Asked> ask_others(const std::vector<HostOfRun>& hosts, const RemoteCommand& remote,
                              std::map<std::string, MachineLimits>& results) {
  std::vector<Asked> asked;
  for (const HostOfRun& host : hosts) {
    if (host.remote.empty()) continue;
    try {
      asked.push_back(
          {&host, ProbeSession(host.name, remote(host.remote, {executable_path().string(), "host-probe"}))});
    } catch (const Error& error) {
      results[host.name].failure = error.what();
    }
  }
  const auto deadline = std::chrono::steady_clock::now() + kHostGreets;
  std::erase_if(asked, [&](Asked& ask) {
    try {
      ask.session.greet(deadline);
      ask.session.send({{"do", probe::kLimits}, {"ranks", to_json(ask.host->ranks)}});
      return false;
    } catch (const Error& error) {
      results[ask.host->name].failure = error.what();
      return true;
    }
  });
  return asked;
}

void hear(std::vector<Asked>& asked, std::map<std::string, MachineLimits>& results) {
  const auto deadline = std::chrono::steady_clock::now() + kHostMeasures;
  for (Asked& ask : asked) {
    MachineLimits& result = results[ask.host->name];
    try {
      const Json answer = ask.session.receive(deadline);
      if (answer.contains("error")) throw Error(answer.value("error", ""));
      result = machine_limits_of(answer);
    } catch (const std::exception& error) {
      result.failure = error.what();
    }
  }
}

std::string measured_text(const std::string& host, bool here, const MachineLimits& result) {
  char text[64];
  std::snprintf(text, sizeof text, ": %.1f s", result.seconds);
  const std::string machine = "measured " + (here ? "this machine" : host);
  if (result.before == 0) return machine + " once" + text;
  return machine + " again, as other programs had " + profile::displaced_text(result.before) +
         " of its cores the last time" + text;
}

// Sets the ranks' threads to the number of the limits, and says why.
void choose_threads(PlacedLaunch& plan, const std::string& host, const profile::RankLimits& limits,
                    const rank::Variables& variables) {
  if (!may_try_siblings(plan, variables) || limits.gflops_by_threads.size() < 2) return;
  for (rank::RankPlacement& rank : plan.ranks) {
    if (rank.host == host) rank.threads = limits.threads;
  }
  const auto [cores, rate] = *limits.gflops_by_threads.begin();
  const auto [cpus, rate_of_all] = *limits.gflops_by_threads.rbegin();
  char text[160];
  std::snprintf(text, sizeof text, "%s: %.0f GFLOP/s (float32 products) with %d threads, %.0f with %d",
                limits.threads == cores ? "one thread per core" : "a thread on each logical CPU", rate, cores,
                rate_of_all, cpus);
  plan.why_threads = text;
}

// Returns the reason for the number of threads while no limits are known. Puts the user's own number into the
// placement.
std::string threads_before_measuring(PlacedLaunch& plan, const rank::Variables& variables) {
  if (!may_try_siblings(plan, variables)) {
    for (rank::RankPlacement& rank : plan.ranks) rank.threads = threads_of(plan, rank, variables);
    return "OMP_NUM_THREADS is set";
  }
  const auto has_siblings = [](const rank::RankPlacement& rank) { return rank.most_threads > rank.threads; };
  const bool siblings = std::any_of(plan.ranks.begin(), plan.ranks.end(), has_siblings);
  return siblings ? "one thread per core; whether a thread on each logical CPU is faster was not measured"
                  : "one thread per core";
}

}  // namespace

void recall_threads(PlacedLaunch& plan, const rank::Variables& variables) {
  plan.why_threads = threads_before_measuring(plan, variables);
  if (plan.on_gpus()) return;
  for (const HostOfRun& host : hosts_of_run(plan, variables)) {
    if (!host.remote.empty() || host.ranks.most_threads <= host.ranks.threads) continue;
    const MachineLimits known = machine_limits(host.ranks, Measure::kNever, variables);
    if (known.limits) choose_threads(plan, host.name, *known.limits, variables);
  }
}

void settle_limits(PlacedLaunch& plan, const RemoteCommand& remote, const rank::Variables& variables,
                   const std::function<void(const std::string&)>& say) {
  plan.limits.clear();
  plan.why_threads = threads_before_measuring(plan, variables);
  if (plan.on_gpus()) return;
  const bool measures = plan.experiment.profiling.calibration && may_calibrate(variables);
  const std::vector<HostOfRun> hosts = hosts_of_run(plan, variables);
  std::map<std::string, MachineLimits> results;
  std::vector<Asked> asked;
  if (measures) asked = ask_others(hosts, remote, results);
  for (const HostOfRun& host : hosts) {
    if (host.remote.empty())
      results[host.name] = machine_limits(host.ranks, measures ? Measure::kIfUnknown : Measure::kNever, variables);
  }
  hear(asked, results);
  for (const HostOfRun& host : hosts) {
    const MachineLimits& result = results[host.name];
    if (result.seconds > 0) say(measured_text(host.name, host.remote.empty(), result));
    if (!result.failure.empty()) {
      plan.warnings.push_back("the limits of host " + host.name +
                              (result.limits ? " were measured, but " : " are not known: ") + result.failure);
    }
    if (!result.limits) continue;
    if (profile::is_disturbed(*result.limits)) {
      plan.warnings.push_back(
          "other programs had " + profile::displaced_text(*result.limits->displaced_share) + " of the cores of host " +
          host.name + " while its limits were measured: MFU is too high, and predictions may be " +
          "wrong; a launch measures them anew when the machine is quieter, dtrain doctor --bench at once");
    }
    choose_threads(plan, host.name, *result.limits, variables);
    profile::RankLimits limits = *result.limits;
    if (plan.experiment.optimizations.matmul == config::Matmul::kDefault) limits.matmul = profile::MatmulPath::kDefault;
    plan.limits[host.name] = std::move(limits);
  }
}

}  // namespace dtrain::launcher
