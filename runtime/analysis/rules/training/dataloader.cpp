// Loader workers of a host against the CPUs the run may use there.
#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <map>

#include "dtrain/base/units.h"
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

// The CPUs a run may use: those it is allowed, or fewer where its cgroup is granted less time.
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
      "Where the training waits for data: prepare it before the training, so that the one thread of a rank keeps up, "
      "or "
      "read with several threads in a BatchSource of your own. Too many: use fewer threads there, or fewer ranks.");
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

// Samples a second that a rank's loader can make against those that its training takes when it never waits for data.
// Both are batches: all workers of the loader at the mean time one takes for a batch, against the mean step without the
// time spent waiting for data.

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
      "Make reading a sample cheaper: keep the data in memory, prepare it before the training, or read with several "
      "threads "
      "in a BatchSource of your own.");
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

}  // namespace dtrain::analysis::rules
