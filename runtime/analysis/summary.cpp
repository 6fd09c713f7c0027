#include "dtrain/analysis/summary.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <numeric>
#include <set>

#include "dtrain/base/error.h"
#include "json_fields.h"
#include "rank_totals.h"
#include "run_files.h"
#include "statistics.h"
#include "system_metrics.h"

namespace dtrain::analysis {
namespace {

namespace fs = std::filesystem;
using profile::Phase;

constexpr std::size_t kMissingNamed = 20;

std::optional<double> part_of(const RankTotals& totals, const char* part) {
  const auto found = totals.parts_s.find(part);
  return found == totals.parts_s.end() ? std::nullopt : std::optional(found->second);
}

void raise_to(std::optional<double>& slowest, const std::optional<double>& value) {
  if (value && (!slowest || *value > *slowest)) slowest = value;
}

void warn_about(const fs::path& path, const ReadResult& read, std::vector<std::string>& warnings) {
  const std::string name = path.filename().string();
  if (read.error) warnings.push_back(*read.error);
  if (read.torn_end) warnings.push_back(name + ": the last line was cut off");
  if (read.unreadable > 0) warnings.push_back(name + ": " + std::to_string(read.unreadable) + " damaged lines skipped");
}

RankSummary to_rank(RankTotals& totals) {
  RankSummary rank;
  rank.rank = totals.rank;
  const Json header = totals.first_line.value_or(Json::object());
  rank.host = text(header, "host");
  rank.agent = text(header, "agent");
  rank.steps = static_cast<std::int64_t>(totals.wall_seconds.size());
  rank.samples = totals.samples;
  rank.initialization_s = part_of(totals, "initialization");
  rank.loop_s = totals.loop_s();
  rank.finalization_s = part_of(totals, "finalization");
  if (rank.loop_s && *rank.loop_s > 0) rank.samples_per_s = static_cast<double>(rank.samples) / *rank.loop_s;
  rank.in_steps_s = totals.wall_sum_s;
  for (const Phase phase :
       {Phase::kTrainBatch, Phase::kForward, Phase::kBackward, Phase::kOptimizerStep, Phase::kStepLrSchedulers}) {
    rank.compute_s += totals.phase_s(phase);
  }
  rank.data_s = totals.phase_s(Phase::kDataloaderNext) + totals.phase_s(Phase::kToDevice);
  rank.wait_s = totals.phase_s(Phase::kAllreduceWait);
  rank.step_p50_s = quantile(totals.wall_seconds, 0.50);
  rank.step_p99_s = quantile(totals.wall_seconds, 0.99);
  rank.loader_records = totals.loader_records;
  rank.loader_empty = totals.loader_empty;
  if (totals.loader_records > 0) {
    rank.loader_queue_mean = static_cast<double>(totals.loader_queue_sum) / static_cast<double>(totals.loader_records);
  }
  rank.ended = totals.ended ? totals.ended->how : std::string();
  rank.dropped = totals.ended ? std::max(totals.dropped_count, totals.ended->dropped) : totals.dropped_count;
  rank.lost = totals.ended ? std::max(totals.lost_count, totals.ended->lost) : totals.lost_count;
  return rank;
}

void warn_about(const RankSummary& rank, const RankTotals& totals, std::vector<std::string>& warnings) {
  const std::string who = "rank " + std::to_string(rank.rank);
  // One that has got through its finalization is done; its process ends in a moment.
  if (rank.ended.empty() && !rank.finalization_s) {
    warnings.push_back(who + " has no end record: it still runs, or its agent was killed");
  }
  if (!rank.ended.empty() && rank.ended != "finished")
    warnings.push_back(who + " ended without finishing: " + rank.ended);
  if (rank.dropped > 0) {
    warnings.push_back(who + ": " + std::to_string(rank.dropped) + " records dropped, its ring was full");
  }
  if (rank.lost > 0) {
    warnings.push_back(who + ": " + std::to_string(rank.lost) + " records could not be written" +
                       (totals.lost_reason.empty() ? "" : ": " + totals.lost_reason));
  }
}

// All dumps of one kind, by the number or id in their names.
std::vector<std::pair<std::string, fs::path>> find_dumps(const fs::path& folder, const std::string& prefix) {
  std::vector<std::pair<std::string, fs::path>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || entry.path().extension() != ".jsonl") continue;
    found.emplace_back(name.substr(prefix.size(), name.size() - prefix.size() - 6), entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<RankTotals> read_ranks(const fs::path& folder, RunSummary& summary) {
  std::vector<RankTotals> ranks;
  for (const auto& [digits, path] : find_dumps(folder, "rank-")) {
    int number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || end != digits.data() + digits.size()) continue;
    ranks.emplace_back(number);
    warn_about(path, read_dump(path, ranks.back()), summary.warnings);
  }
  std::sort(ranks.begin(), ranks.end(), [](const RankTotals& a, const RankTotals& b) { return a.rank < b.rank; });
  return ranks;
}

void add_phases(const std::vector<RankTotals>& ranks, RunSummary& summary) {
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    const auto phase = static_cast<Phase>(i);
    std::vector<double> all;
    for (const RankTotals& rank : ranks) {
      const auto& values = phase == Phase::kTrainBatch ? rank.train_batch_seconds : rank.phase_seconds[i];
      all.insert(all.end(), values.begin(), values.end());
    }
    PhaseSummary row;
    row.name = profile::name_of(phase);
    if (!ranks.empty()) row.seconds = std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(ranks.size());
    if (summary.in_steps_s > 0) row.share = row.seconds / summary.in_steps_s;
    row.p50_s = quantile(all, 0.50);
    row.p99_s = quantile(all, 0.99);
    summary.phases.push_back(std::move(row));
  }
}

void add_collectives(const std::vector<RankTotals>& ranks, RunSummary& summary) {
  std::map<std::pair<std::string, std::int64_t>, CollectiveTotals> merged;
  for (const RankTotals& rank : ranks) {
    for (const auto& [key, totals] : rank.collectives) {
      CollectiveTotals& into = merged[key];
      into.count = std::max(into.count, totals.count);
      into.bytes = std::max(into.bytes, totals.bytes);
      into.exposed_s += totals.exposed_s / static_cast<double>(ranks.size());
      into.seconds.insert(into.seconds.end(), totals.seconds.begin(), totals.seconds.end());
      into.bus_bandwidth.insert(into.bus_bandwidth.end(), totals.bus_bandwidth.begin(), totals.bus_bandwidth.end());
    }
  }
  for (auto& [key, totals] : merged) {
    summary.collectives.push_back({key.first, key.second, totals.count, totals.bytes, quantile(totals.seconds, 0.50),
                                   totals.exposed_s, quantile(totals.bus_bandwidth, 0.50)});
  }
}

void add_waits(const std::vector<RankTotals>& ranks, RunSummary& summary) {
  std::vector<std::vector<ExchangeWait>> waits;
  for (const RankTotals& rank : ranks) waits.push_back(rank.waits);
  const WaitSummary compared = compare_waits(waits);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    summary.ranks[i].waited_for_steps = compared.ranks[i].steps;
    summary.ranks[i].waited_for_s = compared.ranks[i].seconds;
  }
  summary.compared_steps = compared.compared_steps;
  summary.exposed_skew_s = compared.skew_seconds;
}

void add_totals(std::vector<RankTotals>& ranks, RunSummary& summary) {
  std::vector<double> walls;
  double outside_training_s = 0;
  for (RankTotals& totals : ranks) {
    RankSummary rank = to_rank(totals);
    warn_about(rank, totals, summary.warnings);
    walls.insert(walls.end(), totals.wall_seconds.begin(), totals.wall_seconds.end());
    raise_to(summary.initialization_s, rank.initialization_s);
    raise_to(summary.loop_s, rank.loop_s);
    raise_to(summary.finalization_s, rank.finalization_s);
    summary.in_steps_s += rank.in_steps_s / static_cast<double>(ranks.size());
    summary.exposed_s += rank.wait_s / static_cast<double>(ranks.size());
    outside_training_s +=
        (totals.phase_s(Phase::kValidation) + totals.phase_s(Phase::kCheckpoint)) / static_cast<double>(ranks.size());
    summary.steps = std::max(summary.steps, rank.steps);
    add_to(summary.samples, rank.samples);
    summary.ranks.push_back(std::move(rank));
  }
  if (summary.in_steps_s > 0) summary.exposed_share = summary.exposed_s / summary.in_steps_s;
  if (summary.loop_s && *summary.loop_s > 0)
    summary.samples_per_s = static_cast<double>(summary.samples) / *summary.loop_s;
  const double training_s = summary.in_steps_s - outside_training_s;
  if (training_s > 0) summary.training_samples_per_s = static_cast<double>(summary.samples) / training_s;
  summary.step_p50_s = quantile(walls, 0.50);
  summary.step_p99_s = quantile(walls, 0.99);
}

void add_agents(const fs::path& folder, RunSummary& summary) {
  std::set<std::string> found;
  for (const auto& [id, path] : find_dumps(folder, "agent-")) {
    AgentTotals totals;
    warn_about(path, read_dump(path, totals), summary.warnings);
    if (totals.lost_count > 0) {
      summary.warnings.push_back("agent " + id + ": " + std::to_string(totals.lost_count) +
                                 " samples could not be written");
    }
    for (RankSummary& rank : summary.ranks) {
      const auto peak = totals.peak_resident_bytes.find(rank.rank);
      if (peak != totals.peak_resident_bytes.end())
        rank.peak_resident_bytes = std::max(rank.peak_resident_bytes, peak->second);
    }
    summary.agents.push_back(totals.summary());
    if (summary.agents.back().agent.empty()) summary.agents.back().agent = id;
    found.insert(id);
  }
  for (const RankSummary& rank : summary.ranks) {
    if (!rank.agent.empty() && found.insert(rank.agent).second) {
      summary.warnings.push_back("the dump of agent " + rank.agent + " is missing: no system metrics of its host");
    }
  }
}

void warn_about_missing_ranks(RunSummary& summary) {
  std::set<int> found;
  for (const RankSummary& rank : summary.ranks) found.insert(rank.rank);
  std::vector<int> missing;
  for (int rank = 0; rank < summary.world_size; ++rank) {
    if (!found.contains(rank)) missing.push_back(rank);
  }
  const auto named = std::min(missing.size(), kMissingNamed);
  for (std::size_t i = 0; i < named; ++i) {
    summary.warnings.push_back("the dump of rank " + std::to_string(missing[i]) + " is missing");
  }
  if (missing.size() > named) {
    summary.warnings.push_back("the dumps of " + std::to_string(missing.size() - named) + " more ranks are missing");
  }
}

}  // namespace

RunSummary summarize(const fs::path& run_dir) {
  std::error_code error;
  if (!fs::is_directory(run_dir, error)) {
    throw SystemError("cannot read the run " + run_dir.string() + ": there is no such folder", ENOENT,
                      "name a folder that 'dtrain launch' made, such as runs/0001-name");
  }
  RunSummary summary;
  summary.run_dir = run_dir.string();
  add_run_files(run_dir, summary);
  if (summary.name.empty()) summary.name = fs::absolute(run_dir).lexically_normal().filename().string();
  std::vector<RankTotals> ranks = read_ranks(run_dir / "profile", summary);
  for (const RankTotals& rank : ranks) {
    const auto claimed = rank.first_line ? integer(*rank.first_line, "world_size") : 0;
    if (claimed > summary.world_size && claimed <= kLargestWorld) summary.world_size = static_cast<int>(claimed);
  }
  add_totals(ranks, summary);
  warn_about_missing_ranks(summary);
  add_phases(ranks, summary);
  add_waits(ranks, summary);
  add_collectives(ranks, summary);
  add_agents(run_dir / "profile", summary);
  return summary;
}

}  // namespace dtrain::analysis
