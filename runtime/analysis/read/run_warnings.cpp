#include "read/run_warnings.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

constexpr std::size_t kMissingNamed = 20;

// The count of records lost on a full disk may be missing from the rank's dump: then the events have it.
void take_losses(RunProfile& run) {
  for (const Json& event : run.events) {
    const std::string what = text(event, "event");
    const std::int64_t count = integer(event, "count");
    if (what == "records_unconfirmed") {
      run.warnings.push_back("rank " + std::to_string(integer(event, "rank")) +
                             ": its last records may be missing: " + text(event, "reason"));
    }
    if (what == "metrics_lost") {
      run.warnings.push_back("metrics.jsonl: " + std::to_string(count) + " lines could not be written");
    }
    if (what != "records_lost") continue;
    for (RankProfile& rank : run.ranks) {
      if (rank.rank != integer(event, "rank", -1)) continue;
      rank.lost = std::max(rank.lost, count);
      if (rank.lost_reason.empty()) rank.lost_reason = text(event, "reason");
    }
  }
}

void warn_about_ranks(RunProfile& run) {
  std::set<int> found;
  for (const RankProfile& rank : run.ranks) {
    found.insert(rank.rank);
    const std::string who = "rank " + std::to_string(rank.rank);
    // One that has got through its finalization is done; its process ends in a moment.
    if (!rank.end && !rank.part_s("finalization") && rank.lost == 0)
      run.warnings.push_back(who + " has no end record: it still runs, or its agent was killed");
    if (rank.end && rank.end->how != "finished")
      run.warnings.push_back(who + " ended without finishing: " + rank.end->how);
    if (rank.dropped > 0) {
      run.warnings.push_back(who + ": " + std::to_string(rank.dropped) + " records dropped, its ring was full");
    }
    if (rank.lost > 0) {
      run.warnings.push_back(who + ": " + std::to_string(rank.lost) + " records could not be written" +
                             (rank.lost_reason.empty() ? "" : ": " + rank.lost_reason));
    }
  }
  std::vector<int> missing;
  for (int rank = 0; rank < run.world_size; ++rank) {
    if (!found.contains(rank)) missing.push_back(rank);
  }
  const auto named = std::min(missing.size(), kMissingNamed);
  for (std::size_t i = 0; i < named; ++i) {
    run.warnings.push_back("the dump of rank " + std::to_string(missing[i]) + " is missing");
  }
  if (missing.size() > named) {
    run.warnings.push_back("the dumps of " + std::to_string(missing.size() - named) + " more ranks are missing");
  }
}

void warn_about_agents(RunProfile& run) {
  std::set<std::string> found;
  for (const AgentProfile& agent : run.agents) found.insert(agent.agent);
  for (const RankProfile& rank : run.ranks) {
    if (!rank.agent.empty() && found.insert(rank.agent).second) {
      run.warnings.push_back("the dump of agent " + rank.agent + " is missing: no system metrics of its host");
    }
  }
  // Of an agent that was started again the samples between are missing; the ranks' records waited in memory.
  std::map<std::pair<std::string, std::string>, int> ends;  // by agent and how it ended
  for (const Json& event : run.events) {
    if (text(event, "event") == "agent_ended") ++ends[{text(event, "agent"), text(event, "status")}];
  }
  for (const auto& [end, count] : ends) {
    const auto& [agent, status] = end;
    run.warnings.push_back("the profiling agent of " + agent +
                           (status.starts_with("killed") ? " was " : " ended with ") + status +
                           (count > 1 ? " " + std::to_string(count) + " times" : "") +
                           ": system metrics are missing from then until it was started again");
  }
}

}  // namespace

void warn_about_dumps(RunProfile& run) {
  take_losses(run);
  warn_about_ranks(run);
  warn_about_agents(run);
}

}  // namespace dtrain::analysis
