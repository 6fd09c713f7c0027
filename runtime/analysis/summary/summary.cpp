#include "dtrain/analysis/summary.h"

#include <algorithm>
#include <array>

#include "dtrain/base/clock.h"
#include "dtrain/base/text.h"
#include "measure/evidence.h"
#include "measure/roofline.h"
#include "measure/statistics.h"
#include "measure/system_metrics.h"
#include "read/run_files.h"

namespace dtrain::analysis {
namespace {

// The amount of computing in a run, and its share of the hardware's limit.

std::string why_without_mfu(const Roofline& roofline) {
  if (roofline.flops_per_sample <= 0) return "no product of matrices, convolution or attention was counted";
  const std::string of = roofline.is_timed()                   ? "the machine"
                         : roofline.gpus_without_limit.empty() ? "the GPUs"
                                                               : join_with_and(roofline.gpus_without_limit);
  return "plan.json has no limit of " + of + " for " + roofline.limit_dtype +
         ": run 'dtrain doctor --bench' on each host, then launch again";
}

// `summary` has the run's totals. Empty: no operators were counted.
std::optional<ComputeAccount> compute_account(const Evidence& evidence, const RunSummary& summary) {
  const Roofline& roofline = evidence.roofline;
  if (roofline.device.empty() || summary.steps <= 0) return std::nullopt;
  ComputeAccount account;
  account.flops_per_sample = roofline.flops_per_sample;
  account.flops_per_step =
      roofline.flops_per_sample * static_cast<double>(summary.samples) / static_cast<double>(summary.steps);
  account.dtype = roofline.dtype;
  account.limit_dtype = roofline.limit_dtype;
  account.achieved_gflops = roofline.flops_per_sample * summary.training_samples_per_s / kGiga;
  account.limit_gflops = roofline.limit_gflops;
  account.achieved_gb_s = roofline.achieved_gb_s;
  account.limit_gb_s = roofline.limit_gb_s;
  if (account.limit_gflops && account.achieved_gflops > 0) {
    account.mfu = account.achieved_gflops / *account.limit_gflops;
  } else {
    account.without_mfu = why_without_mfu(roofline);
  }
  return account;
}

struct RankTotals {
  std::int64_t count = 0, bytes = 0;
};

struct Totals {
  std::int64_t count = 0, bytes = 0;  // of the rank with most
  std::int64_t exposed_ns = 0;        // of all
  Distribution durations;
  std::vector<double> bandwidths;  // of the collectives with a line of their own
};

void add_collectives(const RunProfile& run, RunSummary& summary) {
  std::map<CollectiveKey, Totals> all;
  for (const RankProfile& rank : run.ranks) {
    std::map<CollectiveKey, RankTotals> own;
    for (const CollectiveLine& line : rank.collectives) {
      const CollectiveKey key{line.operation, line.bucket};
      RankTotals& mine = own[key];
      ++mine.count;
      add_to(mine.bytes, line.bytes);
      Totals& totals = all[key];
      add_to(totals.exposed_ns, line.exposed_ns);
      totals.durations.add(line.ended_ns - line.started_ns);
      totals.bandwidths.push_back(static_cast<double>(line.bus_bandwidth));
    }
    for (const WindowLine& window : rank.windows) {
      for (const CollectiveWindow& line : window.collectives) {
        const CollectiveKey key{line.operation, line.bucket};
        add_to(own[key].count, line.count);
        add_to(own[key].bytes, line.bytes);
        add_to(all[key].exposed_ns, line.exposed_ns);
      }
    }
    for (const auto& [key, sketch] : rank.window_sketches.collectives) all[key].durations.add(sketch);
    for (const auto& [key, mine] : own) {
      all[key].count = std::max(all[key].count, mine.count);
      all[key].bytes = std::max(all[key].bytes, mine.bytes);
    }
  }
  for (auto& [key, totals] : all) {
    summary.collectives.push_back({std::string(name_of(key.operation)), key.bucket, totals.count, totals.bytes,
                                   totals.durations.quantile_s(0.50),
                                   static_cast<double>(totals.exposed_ns) / 1e9 / static_cast<double>(run.ranks.size()),
                                   quantile(totals.bandwidths, 0.50)});
  }
}

using profile::Phase;

void raise_to(std::optional<double>& slowest, const std::optional<double>& value) {
  if (value && (!slowest || *value > *slowest)) slowest = value;
}

double phase_s(const RankProfile& rank, std::initializer_list<Phase> phases) {
  double sum = 0;
  for (const Phase phase : phases) sum += to_seconds(rank.phase_ns(phase));
  return sum;
}

void add_walls(const RankProfile& rank, Distribution& walls) {
  for (const StepLine& step : rank.steps) walls.add(step.wall_ns);
  walls.add(rank.window_sketches.wall);
}

void add_loader(const RankProfile& profile, RankSummary& rank) {
  std::int64_t depths = 0;
  for (const LoaderLine& line : profile.loader) {
    ++rank.loader_records;
    add_to(depths, line.queue_depth);
    if (line.queue_depth == 0) ++rank.loader_empty;
    if (line.fetch_ns > 0) rank.loader_fetch_s += to_seconds(line.fetch_ns);
    rank.loader_usage.add(line.usage);
  }
  for (const WindowLine& window : profile.windows) {
    add_to(rank.loader_records, window.loader_records);
    add_to(rank.loader_empty, window.loader_empty);
    add_to(depths, window.loader_queue_sum);
    rank.loader_fetch_s += to_seconds(window.loader_fetch_ns);
    rank.loader_usage.add(window.loader_usage);
  }
  if (rank.loader_records > 0) {
    rank.loader_queue_mean = static_cast<double>(depths) / static_cast<double>(rank.loader_records);
  }
}

double peak_memory(const RunProfile& run, const RankProfile& rank) {
  double peak = 0;
  for (const MemoryLine& line : rank.memory) {
    peak = std::max(peak, static_cast<double>(std::max(line.resident_bytes, line.peak_bytes)));
  }
  for (const MonitorProfile& monitor : run.monitors) {
    for (const SystemLine& sample : monitor.samples) {
      for (const ProcessLine& process : sample.processes) {
        if (process.rank == rank.rank) peak = std::max(peak, process.resident_bytes);
      }
    }
  }
  return peak;
}

std::optional<GpuMemory> gpu_memory(const RankProfile& profile) {
  if (profile.device_memory.empty()) return std::nullopt;
  GpuMemory memory;
  std::array<std::int64_t, profile::kPhaseCount> peaks;
  peaks.fill(-1);
  for (const DeviceMemoryLine& line : profile.device_memory) {
    memory.reserved_bytes = std::max(memory.reserved_bytes, static_cast<double>(line.reserved_bytes));
    for (std::size_t i = 0; i < peaks.size(); ++i) peaks[i] = std::max(peaks[i], line.peak_bytes[i]);
  }
  for (std::size_t i = 0; i < peaks.size(); ++i) {
    if (peaks[i] < 0) continue;
    const auto bytes = static_cast<double>(peaks[i]);
    memory.of_phases.emplace_back(name_of(static_cast<Phase>(i)), bytes);
    if (bytes <= memory.peak_bytes) continue;
    memory.peak_bytes = bytes;
    memory.peak_phase = memory.of_phases.back().first;
  }
  return memory;
}

RankSummary to_rank(const RunProfile& run, const RankProfile& profile) {
  RankSummary rank{profile.counts()};
  rank.rank = profile.rank;
  rank.host = profile.host;
  rank.agent = profile.agent;
  rank.steps = profile.step_count();
  rank.initialization_s = profile.part_s("initialization");
  rank.loop_s = profile.loop_s();
  rank.finalization_s = profile.part_s("finalization");
  if (rank.loop_s && *rank.loop_s > 0) rank.samples_per_s = static_cast<double>(rank.samples) / *rank.loop_s;
  rank.in_steps_s = to_seconds(profile.wall_ns());
  rank.compute_s = phase_s(profile, {Phase::kTrainBatch, Phase::kForward, Phase::kBackward, Phase::kGraph});
  rank.optimizer_s = phase_s(profile, {Phase::kOptimizerStep, Phase::kStepLrSchedulers});
  rank.data_s = phase_s(profile, {Phase::kDataloaderNext, Phase::kToDevice});
  rank.exposed_s = phase_s(profile, {Phase::kAllreduceWait});
  Distribution walls;
  add_walls(profile, walls);
  rank.step_p50_s = walls.quantile_s(0.50);
  rank.step_p99_s = walls.quantile_s(0.99);
  add_loader(profile, rank);
  rank.peak_resident_bytes = peak_memory(run, profile);
  rank.gpu_memory = gpu_memory(profile);
  for (const auto& [path, totals] : profile.scopes) rank.scopes_s[path] = to_seconds(totals.wall_ns);
  rank.ended = profile.end ? profile.end->how : std::string();
  rank.dropped = profile.dropped;
  rank.lost = profile.lost;
  return rank;
}

void add_phases(const RunProfile& run, double loop_s, RunSummary& summary) {
  constexpr auto kWhole = static_cast<std::size_t>(Phase::kTrainBatch);
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    Distribution all;
    PhaseSummary row;
    row.name = name_of(static_cast<Phase>(i));
    for (const RankProfile& rank : run.ranks) {
      const bool whole = i == kWhole;
      for (const StepLine& step : rank.steps) all.add(whole ? train_batch_of(step) : step.phases[i]);
      all.add(rank.window_sketches.phases[i]);
      row.seconds += whole ? phase_s(rank, {Phase::kTrainBatch, Phase::kForward, Phase::kBackward})
                           : to_seconds(rank.phase_ns(static_cast<Phase>(i)));
    }
    if (!run.ranks.empty()) row.seconds /= static_cast<double>(run.ranks.size());
    if (loop_s > 0) row.share = row.seconds / loop_s;
    row.p50_s = all.quantile_s(0.50);
    row.p99_s = all.quantile_s(0.99);
    summary.phases.push_back(std::move(row));
  }
}

void add_scopes(const RunProfile& run, double loop_s, RunSummary& summary) {
  struct Sums {
    ScopeSummary row;
    Distribution batches;
    profile::PhaseTimes phases{};
  };
  std::map<std::string, Sums> all;
  for (const RankProfile& rank : run.ranks) {
    for (const auto& [path, totals] : rank.scopes) {
      Sums& sums = all[path];
      const double seconds = to_seconds(totals.wall_ns);
      sums.row.seconds += seconds;
      add_to(sums.row.batches, totals.steps);
      add_to(sums.row.calls, totals.calls);
      sums.batches.add(totals.folded);
      for (std::size_t i = 0; i < sums.phases.size(); ++i) add_to(sums.phases[i], totals.phases[i]);
      if (sums.row.slowest_rank >= 0 && seconds <= sums.row.slowest_s) continue;
      sums.row.slowest_rank = rank.rank;
      sums.row.slowest_s = seconds;
    }
    for (const ScopeStep& step : rank.scope_steps) {
      all[rank.scope_paths[static_cast<std::size_t>(step.path)]].batches.add(step.wall_ns);
    }
  }
  for (auto& [path, sums] : all) {
    ScopeSummary& row = sums.row;
    row.path = path;
    row.seconds /= static_cast<double>(run.ranks.size());
    if (loop_s > 0) row.share = row.seconds / loop_s;
    row.p50_s = sums.batches.quantile_s(0.50);
    row.p99_s = sums.batches.quantile_s(0.99);
    for (std::size_t i = 0; i < sums.phases.size(); ++i) {
      const double seconds = to_seconds(sums.phases[i]) / static_cast<double>(run.ranks.size());
      if (seconds > 0) row.phases.emplace_back(name_of(static_cast<Phase>(i)), seconds);
    }
    std::ranges::stable_sort(row.phases, [](const auto& a, const auto& b) { return a.second > b.second; });
    summary.scopes.push_back(std::move(row));
  }
  // A scope comes directly before the scopes within it: '-' and '.' are less than '/'.
  const auto less = [](char x, char y) { return x != y && (x == '/' || (y != '/' && x < y)); };
  std::sort(summary.scopes.begin(), summary.scopes.end(), [&](const ScopeSummary& x, const ScopeSummary& y) {
    return std::lexicographical_compare(x.path.begin(), x.path.end(), y.path.begin(), y.path.end(), less);
  });
}

void add_totals(const RunProfile& run, RunSummary& summary) {
  Distribution walls;
  const auto count = static_cast<double>(run.ranks.size());
  double outside_training_s = 0;
  for (const RankProfile& profile : run.ranks) {
    RankSummary rank = to_rank(run, profile);
    add_walls(profile, walls);
    raise_to(summary.initialization_s, rank.initialization_s);
    raise_to(summary.loop_s, rank.loop_s);
    raise_to(summary.finalization_s, rank.finalization_s);
    summary.in_steps_s += rank.in_steps_s / count;
    outside_training_s += phase_s(profile, {Phase::kValidation, Phase::kCheckpoint}) / count;
    summary.steps = std::max(summary.steps, rank.steps);
    add_to(summary.samples, rank.samples);
    summary.ranks.push_back(std::move(rank));
  }
  if (summary.loop_s && *summary.loop_s > 0)
    summary.samples_per_s = static_cast<double>(summary.samples) / *summary.loop_s;
  const double training_s = summary.in_steps_s - outside_training_s;
  if (training_s > 0) summary.training_samples_per_s = static_cast<double>(summary.samples) / training_s;
  summary.step_p50_s = walls.quantile_s(0.50);
  summary.step_p99_s = walls.quantile_s(0.99);
}

void add_exposed(const Evidence& evidence, RunSummary& summary) {
  summary.exposed_s = evidence.exposed.seconds;
  summary.exchange_s = evidence.exposed.exchange_s;
  summary.waiting_s = evidence.exposed.waiting_s;
  summary.graphs_s = evidence.exposed.graphs_s;
  summary.compared_steps = evidence.waits.compared_steps;
  if (!summary.optimizer_steps && evidence.exposed.exchanges > 0) summary.optimizer_steps = evidence.exposed.exchanges;
  if (evidence.loop_s <= 0) return;
  summary.exposed_share = summary.exposed_s / evidence.loop_s;
  summary.exchange_share = summary.exchange_s / evidence.loop_s;
  summary.waiting_share = summary.waiting_s / evidence.loop_s;
  summary.graphs_share = summary.graphs_s / evidence.loop_s;
}

}  // namespace

const RankSummary* RunSummary::find_rank(int rank) const {
  const auto found = std::find_if(ranks.begin(), ranks.end(), [&](const auto& known) { return known.rank == rank; });
  return found == ranks.end() ? nullptr : &*found;
}

RunSummary summarize(const Evidence& evidence) {
  const RunProfile& run = evidence.run;
  RunSummary summary;
  summary.run_dir = run.folder.string();
  summary.name = run.name;
  summary.world_size = run.world_size;
  summary.times_of_gpus = has_times_of_gpus(run);
  summary.warnings = run.warnings;
  add_run_files(run, summary);
  add_totals(run, summary);
  add_phases(run, evidence.loop_s, summary);
  add_scopes(run, evidence.loop_s, summary);
  add_exposed(evidence, summary);
  summary.compute = compute_account(evidence, summary);
  add_collectives(run, summary);
  for (std::size_t i = 0; i < run.ranks.size(); ++i) {
    summary.ranks[i].waited_for_steps = evidence.waits.ranks[i].steps;
    summary.ranks[i].waited_for_s = evidence.waits.ranks[i].seconds;
  }
  for (const MonitorProfile& monitor : run.monitors) summary.monitors.push_back(summarize_monitor(run, monitor));
  return summary;
}

}  // namespace dtrain::analysis
