#include "measure/contention.h"

#include <algorithm>
#include <set>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "measure/rows.h"
#include "measure/system_metrics.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

bool share_cores(const RankProfile& a, const RankProfile& b) {
  return std::ranges::find_first_of(a.cpus, b.cpus) != a.cpus.end();
}

// Returns the load on the rank's cores less that of ranks on them and of their child processes; empty: a core is not in
// the sample.
std::optional<double> foreign_load(const RunProfile& run, const RankProfile& rank, const SystemLine& sample) {
  if (rank.cpus.empty()) return std::nullopt;
  double load = 0;
  for (const int cpu : rank.cpus) {
    if (cpu < 0 || static_cast<std::size_t>(cpu) >= sample.cpu_util_per_core.size()) return std::nullopt;
    load += sample.cpu_util_per_core[static_cast<std::size_t>(cpu)];
  }
  for (const ProcessLine& process : sample.processes) {
    const RankProfile* const other = run.find_rank(process.rank);
    if (other != nullptr && share_cores(rank, *other))
      load -= process.cpu_percent + process.children_cpu_percent.value_or(0);
  }
  return std::max(0.0, load);
}

// Returns the number of CPUs on which the ranks of this rank's host may run.
std::size_t cpus_of_host(const RunProfile& run, const RankProfile& rank) {
  std::set<int> cpus;
  for (const RankProfile& other : run.ranks) {
    if (other.agent == rank.agent) cpus.insert(other.cpus.begin(), other.cpus.end());
  }
  return cpus.size();
}

Contention of_rank(const RunProfile& run, const RankProfile& rank) {
  Contention result;
  const MonitorProfile* const monitor = run.monitor_of(rank);
  const auto loop = rank.loop();
  if (monitor == nullptr || !loop) return result;
  const std::size_t cpus = cpus_of_host(run, rank);
  double foreign = 0, foreign_ns = 0, wait = 0, wait_ns = 0, throttled = 0, periods = 0, throttled_ns = 0;
  for (const SystemLine& sample : monitor->samples) {
    // Only samples within the loop count: before it the ranks start, after it they are gone.
    if (sample.time_ns - sample.interval_ns < loop->first || sample.time_ns > loop->second) continue;
    const auto process = std::find_if(sample.processes.begin(), sample.processes.end(),
                                      [&](const ProcessLine& line) { return line.rank == rank.rank; });
    if (process == sample.processes.end()) continue;
    ++result.samples;
    const auto interval = static_cast<double>(sample.interval_ns);
    if (const auto load = foreign_load(run, rank, sample)) {
      foreign += *load * interval;
      foreign_ns += interval;
    }
    if (process->cpu_wait_percent >= 0) {
      wait += *process->cpu_wait_percent * interval;
      wait_ns += interval;
    }
    if (const auto stopped = throttled_percent(sample, process->cpu_wait_percent.value_or(-1), cpus)) {
      throttled += *stopped * interval;
      periods += metric_of(sample.metrics, "cpu_throttled_periods").value_or(0) * interval;
      throttled_ns += interval;
    }
  }
  const double loop_s = to_seconds(loop->second - loop->first);
  if (foreign_ns > 0) result.foreign_percent = foreign / foreign_ns;
  if (wait_ns > 0) {
    result.wait_percent = wait / wait_ns;
    result.wait_s = *result.wait_percent / 100 * loop_s;
  }
  if (throttled_ns > 0) {
    result.throttled_percent = periods / throttled_ns;
    result.throttled_s = throttled / throttled_ns / 100 * loop_s;
  }
  return result;
}

// Returns the median optimizer step of these batches, of the rank with the longest one; 0: there is none.
double longest_update_ns(const RunProfile& run, std::int64_t first_batch, std::int64_t last_batch) {
  double longest = 0;
  for (const RankProfile& rank : run.ranks) {
    std::vector<double> updates;
    for (const StepLine& step : rank.steps) {
      if (step.batch < first_batch || step.batch > last_batch || !step.exchanged) continue;
      updates.push_back(static_cast<double>(phase_of(step, profile::Phase::kOptimizerStep)));
    }
    longest = std::max(longest, median_low(std::move(updates)));
  }
  return longest;
}

// If storage delivered less than this share of the requested bytes, the page cache had the files.
constexpr double kFromCache = 0.1;

double share(std::int64_t ns, double seconds) {
  return seconds > 0 ? std::clamp(to_seconds(ns) / seconds, 0.0, 1.0) : 0;
}

}  // namespace

std::optional<double> no_core_s(const std::vector<Contention>& ranks) {
  double sum = 0;
  bool known = false;
  for (const Contention& rank : ranks) {
    sum += rank.wait_s;
    known |= rank.wait_percent.has_value();
  }
  return known ? std::optional(sum / static_cast<double>(ranks.size())) : std::nullopt;
}

double lacking_s(const std::vector<Contention>& ranks, std::size_t rank) {
  std::vector<double> others;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (r != rank) others.push_back(ranks[r].taken_s());
  }
  return std::max(0.0, ranks[rank].taken_s() - quantile(others, 0.5));
}

std::optional<double> throttled_percent(const SystemLine& sample, double wait_percent, std::size_t cpus) {
  const auto stopped = metric_of(sample.metrics, "cpu_throttled_time");
  if (!stopped) return std::nullopt;
  if (cpus == 0) cpus = std::max<std::size_t>(1, sample.cpu_util_per_core.size());
  const double share = *stopped / static_cast<double>(cpus);
  return std::min(100.0, std::max(share, std::min(wait_percent, *stopped)));
}

double throttled_s(const std::vector<Contention>& ranks) {
  double sum = 0;
  for (const Contention& rank : ranks) sum += rank.throttled_s;
  return ranks.empty() ? 0 : sum / static_cast<double>(ranks.size());
}

std::vector<Contention> find_contention(const RunProfile& run) {
  std::vector<Contention> result;
  for (const RankProfile& rank : run.ranks) result.push_back(of_rank(run, rank));
  return result;
}

bool updates_one_copy(const RunProfile& run) {
  const Json& strategy = object_at(run.plan, "strategy");
  return text(strategy, "strategy") == "sharded" && strategy.value("one_copy", Json()) == Json(true);
}

std::optional<double> unshared_update_share(const RunProfile& run, const RunProfile& tried) {
  if (!updates_one_copy(run)) return std::nullopt;
  std::vector<double> replicated_ns;
  for (const Json& turn : list_at(object_at(tried.plan, "strategy"), "turns")) {
    if (!turn.is_object() || text(turn, "strategy") != "replicated") continue;
    const double update_ns = longest_update_ns(tried, integer(turn, "first_batch"), integer(turn, "last_batch"));
    if (update_ns > 0) replicated_ns.push_back(update_ns);
  }
  const double update_ns = longest_update_ns(run, 0, INT64_MAX);
  if (replicated_ns.empty() || update_ns <= 0) return std::nullopt;
  return std::min(1.0, median_low(std::move(replicated_ns)) / std::max(1, tried.world_size) / update_ns);
}

double LoaderUse::cpu_share() const {
  return share(usage.cpu_ns, read_s);
}
double LoaderUse::no_core_share() const {
  return share(usage.no_core_ns, read_s);
}
double LoaderUse::storage_share() const {
  return std::max(0.0, 1 - cpu_share() - no_core_share());
}

std::optional<double> LoaderUse::bytes_of_request() const {
  const auto asked = static_cast<double>(std::max(usage.bytes, usage.disk_bytes));
  const auto from_disk = static_cast<double>(usage.disk_bytes);
  if (usage.requests <= 0 || from_disk <= 0 || from_disk < kFromCache * asked) return std::nullopt;
  return asked / static_cast<double>(usage.requests);
}

std::optional<LoaderUse> loader_use(const RunProfile& run, int rank) {
  LoaderUse use;
  double workers = 0;
  std::int64_t batches = 0;
  for (const RankProfile& of_rank : run.ranks) {
    if (rank >= 0 && of_rank.rank != rank) continue;
    for (const LoaderLine& line : of_rank.loader) {
      if (line.usage.batches == 0) continue;
      use.usage.add(line.usage);
      use.read_s += to_seconds(std::max<std::int64_t>(0, line.fetch_ns));
      workers += line.workers;
      ++batches;
    }
    for (const WindowLine& window : of_rank.windows) {
      if (window.loader_usage.batches <= 0) continue;
      use.usage.add(window.loader_usage);
      use.read_s += to_seconds(window.loader_fetch_ns);
      workers += static_cast<double>(window.loader_workers) * static_cast<double>(window.loader_usage.batches);
      batches += window.loader_usage.batches;
    }
    use.waited_s += to_seconds(of_rank.phase_ns(profile::Phase::kDataloaderNext));
    use.steps_s += to_seconds(of_rank.wall_ns());
  }
  if (batches == 0) return std::nullopt;
  use.workers = workers / static_cast<double>(batches);
  return use;
}

bool has_data_keys(const RunProfile& run) {
  const auto model = run.experiment.find("model");
  return model != run.experiment.end() && !model->is_null();
}

std::string loader_setting(const RunProfile& run, const std::string& key) {
  return (has_data_keys(run) ? "data." : "LoaderSettings::") + key;
}

}  // namespace dtrain::analysis
