#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/analysis/dump_reader.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "dtrain/profile/run_records.h"
#include "read/json_fields.h"
#include "read/run_files.h"

namespace dtrain::analysis {
namespace {

// Warnings about incomplete numbers of a run.

constexpr std::size_t kMissingNamed = 20;

// Takes counts of lost records from the events: after a full disk, the rank's dump may lack the count.
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
    // A rank that has finished its finalization is done; its process ends in a moment.
    if (!rank.end && !rank.part_s("finalization") && rank.lost == 0)
      run.warnings.push_back(who + " has no end record: it still runs, or its monitor was killed");
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

void warn_about_monitors(RunProfile& run) {
  std::set<std::string> found;
  for (const MonitorProfile& monitor : run.monitors) found.insert(monitor.agent);
  for (const RankProfile& rank : run.ranks) {
    if (!rank.agent.empty() && found.insert(rank.agent).second) {
      run.warnings.push_back("the dump of the monitor of " + rank.agent + " is missing: no system metrics of its host");
    }
  }
  // If a monitor was restarted, its samples in between are missing; the ranks' records waited in memory.
  std::map<std::pair<std::string, std::string>, int> ends;  // by agent and how it ended
  for (const Json& event : run.events) {
    if (text(event, "event") == "agent_ended") ++ends[{text(event, "agent"), text(event, "status")}];
  }
  for (const auto& [end, count] : ends) {
    const auto& [agent, status] = end;
    run.warnings.push_back("the monitor of " + agent + (status.starts_with("killed") ? " was " : " ended with ") +
                           status + (count > 1 ? " " + std::to_string(count) + " times" : "") +
                           ": system metrics are missing from then until it was started again");
  }
}

namespace fs = std::filesystem;

constexpr std::size_t kThreads = 2;

class RankCollector final : public DumpHandler {
 public:
  explicit RankCollector(RankProfile& rank) : rank_(rank) {}
  void restart() override {
    const int rank = rank_.rank;
    rank_ = {};
    rank_.rank = rank;
  }
  void header(const Json& json) override {
    rank_.header = json.is_object() ? json : Json::object();
    rank_.end.reset();  // a later attempt in the same file
  }
  void step(const StepLine& line) override { rank_.steps.push_back(line); }
  void collective(const CollectiveLine& line) override { rank_.collectives.push_back(line); }
  void scope(const ScopeLine& line) override {
    ScopeTotals* const totals = scope_of(rank_.scopes, line.path);
    if (totals == nullptr) return;
    totals->add(line);
    const auto known = std::find(rank_.scope_paths.begin(), rank_.scope_paths.end(), line.path);
    const auto path = known - rank_.scope_paths.begin();
    if (known == rank_.scope_paths.end()) rank_.scope_paths.push_back(line.path);
    const auto most = std::max_element(line.phases.begin(), line.phases.end()) - line.phases.begin();
    rank_.scope_steps.push_back({line.batch, line.wall_ns(),
                                 static_cast<std::int32_t>(std::clamp<std::int64_t>(line.calls, 0, INT32_MAX)),
                                 static_cast<std::int32_t>(path), static_cast<profile::Phase>(most)});
  }
  void part(const PartLine& line) override { rank_.parts.push_back(line); }
  void loader(const LoaderLine& line) override { rank_.loader.push_back(line); }
  void clock(const ClockLine& line) override { rank_.clocks.push_back(line); }
  void memory(const MemoryLine& line) override { rank_.memory.push_back(line); }
  void device_memory(const DeviceMemoryLine& line) override { rank_.device_memory.push_back(line); }
  void window(const WindowLine& line, const WindowSketches& sketches) override {
    rank_.windows.push_back(line);
    rank_.window_sketches.merge(sketches);
  }
  void dropped(std::int64_t count) override { add_to(rank_.dropped, count); }
  void lost(std::int64_t count, const std::string& reason) override {
    add_to(rank_.lost, count);
    rank_.lost_reason = reason;
  }
  void end(const EndLine& line) override { rank_.end = line; }

 private:
  RankProfile& rank_;
};

class MonitorCollector final : public DumpHandler {
 public:
  explicit MonitorCollector(MonitorProfile& monitor) : monitor_(monitor) {}
  void header(const Json& json) override { monitor_.header = json.is_object() ? json : Json::object(); }
  void system(const SystemLine& line) override { monitor_.samples.push_back(line); }
  void gpu(const GpuLine& line) override { monitor_.gpus.push_back(line); }
  void lost(std::int64_t count, const std::string&) override { add_to(monitor_.lost, count); }
  void end(const EndLine& line) override { monitor_.end = line; }

 private:
  MonitorProfile& monitor_;
};

void warn_about(const fs::path& path, const ReadResult& read, std::vector<std::string>& warnings) {
  const std::string name = path.filename().string();
  if (read.error) warnings.push_back(*read.error);
  if (read.torn_end) warnings.push_back(name + ": the last line was cut off");
  if (read.unreadable > 0) warnings.push_back(name + ": " + std::to_string(read.unreadable) + " damaged lines skipped");
}

// Does all jobs on a few threads; the caller gets the first exception.
void do_all(const std::vector<std::function<void()>>& jobs) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::atomic<bool> failed{false};
  const auto work = [&] {
    for (std::size_t job = next++; job < jobs.size() && !failed; job = next++) {
      try {
        jobs[job]();
      } catch (...) {
        if (!failed.exchange(true)) failure = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < std::min(kThreads, jobs.size()); ++i) threads.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

template <typename Line>
void sort_by_batch(std::vector<Line>& lines) {
  const auto earlier = [](const Line& a, const Line& b) { return a.batch < b.batch; };
  if (!std::is_sorted(lines.begin(), lines.end(), earlier)) std::stable_sort(lines.begin(), lines.end(), earlier);
  lines.shrink_to_fit();
}

void complete(RankProfile& rank) {
  rank.host = text(rank.header, "host");
  rank.agent = text(rank.header, "agent");
  for (const Json& cpu : list_at(rank.header, "cpus")) {
    if (cpu.is_number_integer()) rank.cpus.push_back(cpu.get<int>());
  }
  if (const Json* first = find_object(rank.header, "rank_0_clock")) {
    const ClockLine line{integer(*first, "time_ns"), integer(*first, "offset_ns"), integer(*first, "error_ns")};
    if (rank.clocks.empty() || rank.clocks.front().time_ns > line.time_ns)
      rank.clocks.insert(rank.clocks.begin(), line);
  }
  if (rank.end) {
    rank.dropped = std::max(rank.dropped, rank.end->dropped);
    rank.lost = std::max(rank.lost, rank.end->lost);
  }
  sort_by_batch(rank.steps);
  sort_by_batch(rank.collectives);
  sort_by_batch(rank.loader);
  sort_by_batch(rank.scope_steps);
  for (const auto& [path, totals] : rank.window_sketches.scopes) {
    if (ScopeTotals* const scope = scope_of(rank.scopes, path)) scope->merge(totals);
  }
}

void read_dumps(const fs::path& folder, RunProfile& run) {
  const auto monitor_files = monitor_dumps(folder);
  const auto rank_files = rank_dumps(folder);
  run.ranks.resize(rank_files.size());
  run.monitors.resize(monitor_files.size());
  std::vector<ReadResult> results(rank_files.size() + monitor_files.size());
  std::vector<std::function<void()>> jobs;
  for (std::size_t i = 0; i < rank_files.size(); ++i) {
    run.ranks[i].rank = rank_files[i].first;
    jobs.emplace_back([&run, &results, i, path = rank_files[i].second] {
      RankCollector collector(run.ranks[i]);
      results[i] = read_dump(path, collector);
      complete(run.ranks[i]);
    });
  }
  for (std::size_t i = 0; i < monitor_files.size(); ++i) {
    jobs.emplace_back([&run, &results, at = rank_files.size() + i, i, path = monitor_files[i].second] {
      MonitorCollector collector(run.monitors[i]);
      results[at] = read_dump(path, collector);
    });
  }
  do_all(jobs);
  for (std::size_t i = 0; i < rank_files.size(); ++i) warn_about(rank_files[i].second, results[i], run.warnings);
  for (std::size_t i = 0; i < monitor_files.size(); ++i) {
    MonitorProfile& monitor = run.monitors[i];
    monitor.agent = text(monitor.header, "agent");
    if (monitor.agent.empty()) monitor.agent = monitor_files[i].first;
    monitor.host = text(monitor.header, "host");
    warn_about(monitor_files[i].second, results[rank_files.size() + i], run.warnings);
    if (monitor.lost > 0) {
      run.warnings.push_back("the monitor of " + monitor_files[i].first + ": " + std::to_string(monitor.lost) +
                             " samples could not be written");
    }
  }
}

void read_run_records(const fs::path& folder, RunProfile& run) {
  using profile::RecordFile;
  profile::Damage damage;
  run.plan = profile::read_plan(folder, damage);
  config::hide_variables(run.plan);
  const auto add_to_list = [](std::vector<Json>& list) {
    return [&](Json&& json) { list.push_back(std::move(json)); };
  };
  damage.add(profile::read_records(folder, RecordFile::kEvents, add_to_list(run.events)));
  damage.add(profile::read_records(folder, RecordFile::kMetrics, add_to_list(run.metrics)));
  run.warnings = damage.lines();
  run.experiment = object_at(run.plan, "experiment");
  run.name = text(run.plan, "name");
  run.world_size = static_cast<int>(std::clamp<std::int64_t>(integer(run.plan, "world_size"), 0, kLargestWorld));
}

}  // namespace

RunProfile load_run(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw SystemError("cannot read the run " + folder.string() + ": there is no such folder", ENOENT,
                      "name a folder that 'dtrain launch' made, such as runs/0001-name");
  }
  RunProfile run;
  run.folder = folder;
  read_run_records(folder, run);
  if (run.name.empty()) run.name = fs::absolute(folder).lexically_normal().filename().string();
  read_dumps(folder / "profile", run);
  run.operator_counts = read_operator_counts(folder / "profile", run.warnings);
  run.kernel_times = read_kernel_times(folder / "profile", run.warnings);
  for (const RankProfile& rank : run.ranks) {
    const auto claimed = integer(rank.header, "world_size");
    if (claimed > run.world_size && claimed <= kLargestWorld) run.world_size = static_cast<int>(claimed);
  }
  take_losses(run);
  warn_about_ranks(run);
  warn_about_monitors(run);
  return run;
}

}  // namespace dtrain::analysis
