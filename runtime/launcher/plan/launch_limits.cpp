#include "plan/launch_plan.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/host/rank_threads.h"
#include "gpu_limits.h"
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
  std::vector<std::string> gpus;  // of the ranks, as CUDA_VISIBLE_DEVICES names them; empty: not known
};

std::optional<int> threads_of_user(const LaunchPlan& plan, rank::Variables variables) {
  if (plan.experiment.virtual_ranks > 0) return plan.experiment.virtual_rank_threads;
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
      HostOfRun new_host{.name = rank.host, .remote = rank.host == plan.host ? "" : rank.host, .ranks = {}, .gpus = {}};
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
    if (rank.gpu) host->gpus.push_back(rank.gpu->id());
  }
  for (HostOfRun& host : hosts) {
    if (std::cmp_not_equal(host.ranks.cpus.size(), host.ranks.ranks)) host.ranks.cpus.clear();
  }
  return hosts;
}

// `dtrain host-probe` on the other hosts of a run. They measure at once, and while this host measures.
class OtherHosts {
 public:
  // Sends each of them its request. A host that cannot be asked has a failure for its answer.
  OtherHosts(const std::vector<HostOfRun>& hosts, const RemoteCommand& remote,
             const std::function<Json(const HostOfRun&)>& request_of) {
    for (const HostOfRun& host : hosts) {
      if (host.remote.empty()) continue;
      try {
        asked_.push_back(
            {&host, ProbeSession(host.name, remote(host.remote, {executable_path().string(), "host-probe"}))});
      } catch (const Error& error) {
        failures_[host.name] = error.what();
      }
    }
    const auto deadline = std::chrono::steady_clock::now() + kHostGreets;
    std::erase_if(asked_, [&](Asked& ask) {
      try {
        ask.session.greet(deadline);
        ask.session.send(request_of(*ask.host));
        return false;
      } catch (const Error& error) {
        failures_[ask.host->name] = error.what();
        return true;
      }
    });
  }

  // Waits for the answers. Calls `read` with each, and `fail` for a host without one or whose answer `read` refuses.
  void hear(const std::function<void(const std::string&, const Json&)>& read,
            const std::function<void(const std::string&, const std::string&)>& fail) {
    for (const auto& [host, failure] : failures_) fail(host, failure);
    const auto deadline = std::chrono::steady_clock::now() + kHostMeasures;
    for (Asked& ask : asked_) {
      try {
        const Json answer = ask.session.receive(deadline);
        if (answer.contains("error")) throw Error(answer.value("error", ""));
        read(ask.host->name, answer);
      } catch (const std::exception& error) {
        fail(ask.host->name, error.what());
      }
    }
  }

 private:
  struct Asked {
    const HostOfRun* host;
    ProbeSession session;
  };
  std::vector<Asked> asked_;
  std::map<std::string, std::string> failures_;  // by host
};

// Measures on all hosts at once. `request_of`: for another host; `here`: on this one; `read`: makes the result of an
// answer. A result has a `failure`.
template <typename Result>
std::map<std::string, Result> on_all_hosts(const std::vector<HostOfRun>& hosts, const RemoteCommand& remote,
                                           bool ask_others, const std::function<Json(const HostOfRun&)>& request_of,
                                           const std::function<Result(const HostOfRun&)>& here,
                                           const std::function<Result(const Json&)>& read) {
  std::map<std::string, Result> results;
  std::optional<OtherHosts> others;
  if (ask_others) others.emplace(hosts, remote, request_of);
  for (const HostOfRun& host : hosts) {
    if (host.remote.empty()) results[host.name] = here(host);
  }
  if (others) {
    others->hear([&](const std::string& host, const Json& answer) { results[host] = read(answer); },
                 [&](const std::string& host, const std::string& failure) { results[host].failure = failure; });
  }
  return results;
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
    return plan.experiment.virtual_ranks > 0 ? "as reproducibility.virtual_rank_threads says"
                                             : "OMP_NUM_THREADS is set";
  }
  const auto has_siblings = [](const rank::RankPlacement& rank) { return rank.most_threads > rank.threads; };
  const bool siblings = std::any_of(plan.ranks.begin(), plan.ranks.end(), has_siblings);
  return siblings ? "one thread per core; whether a thread on each logical CPU is faster was not measured"
                  : "one thread per core";
}

void warn_of_failure(PlacedLaunch& plan, const std::string& whose, bool known, const std::string& failure) {
  if (failure.empty()) return;
  plan.warnings.push_back("the limits of " + whose + (known ? " were measured, but " : " are not known: ") + failure);
}

// Fills in the limits of the kinds of GPUs on which the ranks are placed.
void settle_gpu_limits(PlacedLaunch& plan, bool measures, const RemoteCommand& remote, const rank::Variables& variables,
                       const std::function<void(const std::string&)>& say) {
  const Measure measure = measures ? Measure::kIfUnknown : Measure::kNever;
  const auto results = on_all_hosts<HostGpuLimits>(
      hosts_of_run(plan, variables), remote, measures,
      [](const HostOfRun& host) {
        return Json{{"do", probe::kGpuLimits}, {"gpus", host.gpus}, {"program", host.ranks.program.string()}};
      },
      [&](const HostOfRun& host) { return gpu_limits(host.gpus, measure, host.ranks.program, variables); },
      host_gpu_limits_of);
  for (const auto& [host, result] : results) {
    if (!result.measured.empty()) {
      char text[32];
      std::snprintf(text, sizeof text, " once: %.1f s", result.seconds);
      say("measured " + join_with_and(result.measured) + " of " + (host == plan.host ? "this machine" : host) + text);
    }
    warn_of_failure(plan, "the GPUs of host " + host, !result.limits.empty(), result.failure);
    if (!result.limits.empty()) plan.gpu_limits[host] = result.limits;
  }
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
  plan.gpu_limits.clear();
  plan.why_threads = threads_before_measuring(plan, variables);
  const bool measures = plan.experiment.profiling.calibration && may_calibrate(variables);
  if (plan.on_gpus()) return settle_gpu_limits(plan, measures, remote, variables, say);
  const std::vector<HostOfRun> hosts = hosts_of_run(plan, variables);
  auto results = on_all_hosts<MachineLimits>(
      hosts, remote, measures,
      [](const HostOfRun& host) {
        return Json{{"do", probe::kLimits}, {"ranks", to_json(host.ranks)}};
      },
      [&](const HostOfRun& host) {
        return machine_limits(host.ranks, measures ? Measure::kIfUnknown : Measure::kNever, variables);
      },
      machine_limits_of);
  for (const HostOfRun& host : hosts) {
    const MachineLimits& result = results[host.name];
    if (result.seconds > 0) say(measured_text(host.name, host.remote.empty(), result));
    warn_of_failure(plan, "host " + host.name, result.limits.has_value(), result.failure);
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
