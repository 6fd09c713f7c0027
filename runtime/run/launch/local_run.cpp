#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/config/experiment.h"
#include "dtrain/profile/agent_process.h"
#include "dtrain/run/version.h"
#include "launch/local_ranks.h"
#include "launch/run_attempt.h"
#include "launch/watcher.h"
#include "link/rendezvous.h"

namespace dtrain::run {
namespace {

constexpr auto kLocalAgentPatience = std::chrono::seconds(2);

profile::AgentOptions agent_options(const LaunchPlan& plan, const RunFolder& folder) {
  profile::AgentOptions options{.agent_id = plan.host, .profile_folder = folder.profile()};
  for (const RankPlacement& rank : plan.ranks) options.local_ranks.push_back(rank.rank);
  options.header = {{"run", folder.path.filename().string()}, {"versions", {{"dtrain", version()}}}};
  if (const auto& wanted = plan.experiment.profiling.prometheus) options.prometheus = {wanted->address, wanted->port};
  return options;
}

}  // namespace

Outcome run_local(const Attempt& attempt) {
  const LaunchPlan& plan = attempt.plan;
  LocalRanks ranks(attempt);
  profile::KeptAgent agent(agent_options(plan, attempt.folder), attempt.clock);
  attempt.events.write("agent_started", {{"agent", plan.host}, {"pid", agent.pid()}});
  ranks.keep_agent(agent);

  Handover handover;
  handover.launcher_pid = ::getpid();
  handover.run_dir = attempt.folder.path;
  handover.rendezvous = rendezvous_path(private_folder(attempt.variables), "launch-" + random_hex(8));
  handover.agent_id = plan.host;
  handover.agent_socket = agent.socket();
  handover.on_gpus = plan.on_gpus();
  handover.resume_from = attempt.resume.path;
  ranks.start(handover, attempt.variables);
  watch_ranks(attempt, ranks);
  Outcome outcome = ranks.outcome();
  std::error_code ignored;
  std::filesystem::remove(handover.rendezvous, ignored);  // left only by a rank 0 that was killed early

  // The agent ends after the last rank. If some rank never connected, there is no reason to wait.
  const auto patience = ranks.all_joined() ? kLocalAgentPatience : std::chrono::seconds(0);
  const ExitStatus agent_status = agent.finish(patience);
  // Lost records are no failure of the run: a rank has logged a warning, and the summary counts them.
  const bool lost_records = agent_status.signal == 0 && agent_status.code == profile::kRecordsLost;
  if (!agent_status.success() && !lost_records) {
    attempt.events.write("agent_ended", {{"agent", plan.host}, {"status", agent_status.describe()}});
    attempt.screen.line(
        "dtrain: warning: the profiling agent of this host did not end as it should: " + agent_status.describe() +
        "; the last records may be missing from the profile, its log is in " + attempt.folder.logs().string());
  }
  return outcome;
}

}  // namespace dtrain::run
