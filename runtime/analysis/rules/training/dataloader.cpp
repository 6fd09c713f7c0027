// Compares the loader workers of a host with the CPUs that the run may use there.
#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <map>

#include "dtrain/base/clock.h"
#include "dtrain/base/text.h"
#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct Dataloader {
  static constexpr const char* kWord = "Dataloader";
  static constexpr const char* kText = "Too few or too many loader threads for the cores of a host.";
  double min_threshold = 70, max_threshold = 200;
  void declare_keys(config::Keys& keys) {
    keys.number({"min_threshold", "Fewer loader threads than this percentage of the cores are too few."}, min_threshold,
                {0, 10'000});
    keys.number({"max_threshold", "More loader threads than this percentage of the cores are too many."}, max_threshold,
                {0, 10'000});
  }
  RuleResult judge(const RuleData& data) const;
};

struct OfHost {
  double workers = 0, waited_s = 0, steps_s = 0;
  std::int64_t records = 0, empty = 0;
};

// Returns the number of CPUs that a run may use: its allowed CPUs, or fewer if its cgroup is granted less time.
std::optional<double> processors(const Machine& machine) {
  double allowed = 0;
  for (const auto& core : machine.cores) allowed += static_cast<double>(core.size());
  if (allowed == 0) return machine.cpu_limit;
  return std::min(allowed, machine.cpu_limit.value_or(allowed));
}

std::string advice(const std::string& host, const OfHost& loading, double cpus, bool few) {
  const double waited = loading.steps_s > 0 ? loading.waited_s / loading.steps_s : 0;
  return fmt::format(
      "{}: {:.3g} loader workers on {:.3g} CPUs are {}; the training waited for data for {} of its "
      "time{}",
      host, loading.workers, cpus, few ? "few" : "many", format_percent(waited),
      few && waited < 0.01 ? ", so it is fast enough" : "");
}

}  // namespace

RuleResult Dataloader::judge(const RuleData& data) const {
  RuleResult result = begin_result(
      kWord, "report", "hosts",
      "Compares the number of loader workers of a host with its CPUs: too few may leave the training waiting for data, "
      "too many take CPUs away from computing.",
      "Where the training waits for data: more loader workers (data.workers, or LoaderSettings::workers in a program; "
      "auto adds them as long as the rank's cores are free). Too many: fewer of them, or fewer ranks.");
  std::map<std::string, OfHost> by_agent;
  for (const LoaderSeries& loader : data.loaders) {
    if (loader.records == 0) continue;
    OfHost& host = by_agent[loader.agent];
    host.workers += loader.workers;
    host.records += loader.records;
    host.empty += loader.empty;
    host.waited_s += loader.waited_s;
    host.steps_s += loader.steps_s;
  }
  if (by_agent.empty()) return not_applicable(std::move(result), "no batch of a loader was recorded");
  std::int64_t few = 0;
  std::int64_t many = 0;
  std::int64_t unknown = 0;
  Json all = Json::array();
  Json advices = Json::array();
  for (const auto& of_agent : by_agent) {
    const std::string& agent = of_agent.first;
    const auto& loading = of_agent.second;
    const auto host =
        std::find_if(data.hosts.begin(), data.hosts.end(), [&](const HostSeries& h) { return h.agent == agent; });
    const bool known = host != data.hosts.end();
    const auto cpus = known ? processors(host->machine) : std::nullopt;
    const std::string name = known && !host->host.empty() ? host->host : agent;
    Json one = {{"agent", agent},
                {"host", name},
                {"workers", loading.workers},
                {"batches", loading.records},
                {"not_ready", loading.empty},
                {"waited_s", loading.waited_s},
                {"steps_s", loading.steps_s}};
    if (cpus) {
      const double share = 100 * loading.workers / *cpus;
      const bool is_few = share < min_threshold;
      const bool is_many = share > max_threshold;
      one["processors"] = *cpus;
      one["percent"] = share;
      few += is_few ? 1 : 0;
      many += is_many && !is_few ? 1 : 0;
      if (is_few || is_many) advices.push_back(advice(name, loading, *cpus, is_few));
      result.datapoints += loading.records;
    } else {
      ++unknown;
    }
    all.push_back(std::move(one));
  }
  const auto total = static_cast<std::int64_t>(by_agent.size());
  if (unknown == total) {
    return not_applicable(std::move(result), "which CPUs the run may use is not recorded");
  }
  result.triggered = few + many;
  result.counts = {{"hosts", total}, {"not_known", unknown}, {"fitting", total - unknown - few - many},
                   {"too_few", few}, {"too_many", many},     {"triggered", result.triggered}};
  result.details = {{"hosts", std::move(all)}, {"advice", std::move(advices)}};
  return result;
}

std::unique_ptr<Rule> make_dataloader() {
  return std::make_unique<RuleOf<Dataloader>>();
}

// Compares the samples a second that a rank's loader can make with those that its training takes when it never waits
// for data. Both are computed from batches: all workers of the loader at the mean time of a worker for a batch, and the
// mean step without the time spent waiting for data.

namespace {

struct LoaderRate {
  static constexpr const char* kWord = "LoaderRate";
  static constexpr const char* kText = "A loader that delivers samples more slowly than the training uses them.";
  double threshold = 100;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "The loader's rate, in percent of the training's, must be above this."}, threshold,
                {0, 10'000});
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult LoaderRate::judge(const RuleData& data) const {
  RuleResult result = begin_result(
      kWord, "system", "ranks",
      "Compares the batches a second that a rank's loader can make with those its training takes where it never waits.",
      "More loader workers (data.workers, or LoaderSettings::workers in a program), or cheaper samples: data in memory "
      "(data.in_memory), or prepared before the training.");
  std::int64_t unknown = 0;
  Json all = Json::array();
  for (const LoaderSeries& loader : data.loaders) {
    const double computing_s = loader.steps_s - loader.waited_s;
    if (!loader.fetch_s || *loader.fetch_s <= 0 || loader.records == 0 || computing_s <= 0 || loader.workers <= 0) {
      ++unknown;
      continue;
    }
    const double makes = loader.workers / *loader.fetch_s;
    const double takes = static_cast<double>(loader.steps) / computing_s;
    const double share = 100 * makes / takes;
    const bool triggers = share <= threshold;
    result.datapoints += loader.records;
    result.triggered += triggers ? 1 : 0;
    all.push_back({{"rank", loader.rank},
                   {"loader_batches_per_s", makes},
                   {"training_batches_per_s", takes},
                   {"percent", share},
                   {"triggered", triggers}});
  }
  if (all.empty()) return not_applicable(std::move(result), "how long loaders took for a batch is not recorded");
  return count_each(std::move(result), "ranks", data.loaders.size(), unknown, std::move(all));
}

std::unique_ptr<Rule> make_loader_rate() {
  return std::make_unique<RuleOf<LoaderRate>>();
}

// Loaders whose workers wait for storage because they read in small pieces from a disk that is fast only with large
// ones.

namespace {

struct SmallReads {
  static constexpr const char* kWord = "SmallReads";
  static constexpr const char* kText = "A training that waits for small reads from a disk that could be read faster.";
  double request = 128, rate = 200, waiting = 5;
  void declare_keys(config::Keys& keys) {
    keys.number({.name = "request", .text = "Requests of less than this, on average, are small.", .unit = "KB"},
                request, {0, 1'000'000});
    keys.number({.name = "rate",
                 .text = "What a disk of this run can do in large requests; reading at less than half of it is slow.",
                 .unit = "MB/s"},
                rate, {0, 1'000'000});
    keys.number({"waiting", "Ranks that wait for data for less than this percentage of their time are not judged."},
                waiting, {0, 100});
  }
  RuleResult judge(const RuleData& data) const;
};

constexpr double kKilobyte = 1024, kMegabyte = 1024 * 1024;

}  // namespace

RuleResult SmallReads::judge(const RuleData& data) const {
  RuleResult result = begin_result(
      kWord, "system", "ranks",
      "Looks for ranks that wait for data while their loader workers wait for storage, which they read in small pieces "
      "and far more slowly than a disk can be read.",
      "Keep the samples in shards or in one file, and shuffle in a window (data.shuffle_window, or "
      "LoaderSettings::shuffle_window in a program); or read more of them at once (data.workers, "
      "LoaderSettings::workers).");
  std::int64_t unknown = 0;
  Json all = Json::array();
  for (const LoaderSeries& loader : data.loaders) {
    const LoaderUsage& usage = loader.usage;
    if (usage.batches == 0 || loader.steps_s <= 0 || loader.read_s <= 0) {
      ++unknown;
      continue;
    }
    const double waited = 100 * loader.waited_s / loader.steps_s;
    const auto from_disk = static_cast<double>(usage.disk_bytes);
    const auto asked = static_cast<double>(std::max(usage.bytes, usage.disk_bytes));
    const double of_request = usage.requests > 0 ? asked / static_cast<double>(usage.requests) : 0;
    const double a_second = from_disk / loader.steps_s;
    const double for_storage = loader.read_s - to_seconds(usage.cpu_ns) - to_seconds(usage.no_core_ns);
    const bool is_storage = from_disk > 0.1 * asked && from_disk > 0 && for_storage > 0.5 * loader.read_s;
    const bool triggers =
        waited >= waiting && is_storage && of_request < request * kKilobyte && a_second < 0.5 * rate * kMegabyte;
    result.datapoints += usage.batches;
    result.triggered += triggers ? 1 : 0;
    all.push_back({{"rank", loader.rank},
                   {"waited_percent", waited},
                   {"storage_percent", std::max(0.0, 100 * for_storage / loader.read_s)},
                   {"bytes_of_request", of_request},
                   {"disk_bytes_per_s", a_second},
                   {"requests", usage.requests},
                   {"triggered", triggers}});
  }
  if (all.empty()) return not_applicable(std::move(result), "what loaders read is not recorded");
  return count_each(std::move(result), "ranks", data.loaders.size(), unknown, std::move(all));
}

std::unique_ptr<Rule> make_small_reads() {
  return std::make_unique<RuleOf<SmallReads>>();
}

}  // namespace dtrain::analysis::rules
