// Loading: rules about the loaders' threads, rates, reads and memory, and the cost of waiting for data.
#include <algorithm>
#include <map>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "findings/judgement.h"
#include "measure/contention.h"
#include "read/json_fields.h"
#include "read/text.h"

namespace dtrain::analysis::findings {
namespace {

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
      "{}: {:.3g} loader workers on {:.3g} CPUs are {}; the training waited for data for {} of its time{}", host,
      loading.workers, cpus, few ? "few" : "many", format_percent(waited),
      few && waited < 0.01 ? ", so it is fast enough" : "");
}

std::string judge_workers(const RuleData& data, const Parameters& p, Finding& result) {
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
  if (by_agent.empty()) return "no batch of a loader was recorded";
  std::int64_t few = 0, many = 0, unknown = 0;
  Json all = Json::array();
  Json advices = Json::array();
  for (const auto& of_agent : by_agent) {
    const std::string& agent = of_agent.first;
    const OfHost& loading = of_agent.second;
    const auto host = std::ranges::find_if(data.hosts, [&](const HostSeries& h) { return h.agent == agent; });
    const bool known = host != data.hosts.end();
    const auto cpus = known ? processors(host->machine) : std::nullopt;
    const std::string name = known && !host->host.empty() ? host->host : agent;
    Json facts = {{"agent", agent},
                  {"host", name},
                  {"workers", loading.workers},
                  {"batches", loading.records},
                  {"not_ready", loading.empty},
                  {"waited_s", loading.waited_s},
                  {"steps_s", loading.steps_s}};
    if (cpus) {
      const double share = 100 * loading.workers / *cpus;
      const bool is_few = share < p["min_threshold"];
      const bool is_many = share > p["max_threshold"];
      facts["processors"] = *cpus;
      facts["percent"] = share;
      few += is_few ? 1 : 0;
      many += is_many && !is_few ? 1 : 0;
      if (is_few || is_many) advices.push_back(advice(name, loading, *cpus, is_few));
      result.datapoints += loading.records;
    } else {
      ++unknown;
    }
    all.push_back(std::move(facts));
  }
  const auto total = static_cast<std::int64_t>(by_agent.size());
  if (unknown == total) return "which CPUs the run may use is not recorded";
  result.triggered = few + many;
  result.counts = {{"hosts", total}, {"not_known", unknown}, {"fitting", total - unknown - few - many},
                   {"too_few", few}, {"too_many", many},     {"triggered", result.triggered}};
  result.details = {{"hosts", std::move(all)}, {"advice", std::move(advices)}};
  return {};
}

// Both rates are computed from batches: all workers of the loader at the mean time of a worker for a batch, and the
// mean step without the time spent waiting for data.
std::string judge_rate(const RuleData& data, const Parameters& p, Finding& result) {
  Items ranks(result, "ranks");
  for (const LoaderSeries& loader : data.loaders) {
    const double computing_s = loader.steps_s - loader.waited_s;
    if (!loader.fetch_s || *loader.fetch_s <= 0 || loader.records == 0 || computing_s <= 0 || loader.workers <= 0) {
      ranks.unknown();
      continue;
    }
    const double makes = loader.workers / *loader.fetch_s;
    const double takes = static_cast<double>(loader.steps) / computing_s;
    const double share = 100 * makes / takes;
    ranks.add(
        {{"rank", loader.rank}, {"loader_batches_per_s", makes}, {"training_batches_per_s", takes}, {"percent", share}},
        loader.records, share <= p["threshold"]);
  }
  return ranks.finish("how long loaders took for a batch is not recorded");
}

constexpr double kKilobyte = 1024, kMegabyte = 1024 * 1024;

std::string judge_reads(const RuleData& data, const Parameters& p, Finding& result) {
  Items ranks(result, "ranks");
  for (const LoaderSeries& loader : data.loaders) {
    const LoaderUsage& usage = loader.usage;
    if (usage.batches == 0 || loader.steps_s <= 0 || loader.read_s <= 0) {
      ranks.unknown();
      continue;
    }
    const double waited = 100 * loader.waited_s / loader.steps_s;
    const auto from_disk = static_cast<double>(usage.disk_bytes);
    const auto asked = static_cast<double>(std::max(usage.bytes, usage.disk_bytes));
    const double of_request = usage.requests > 0 ? asked / static_cast<double>(usage.requests) : 0;
    const double a_second = from_disk / loader.steps_s;
    const double for_storage = loader.read_s - to_seconds(usage.cpu_ns) - to_seconds(usage.no_core_ns);
    const bool is_storage = from_disk > 0.1 * asked && from_disk > 0 && for_storage > 0.5 * loader.read_s;
    ranks.add({{"rank", loader.rank},
               {"waited_percent", waited},
               {"storage_percent", std::max(0.0, 100 * for_storage / loader.read_s)},
               {"bytes_of_request", of_request},
               {"disk_bytes_per_s", a_second},
               {"requests", usage.requests}},
              usage.batches,
              waited >= p["waiting"] && is_storage && of_request < p["request"] * kKilobyte &&
                  a_second < 0.5 * p["rate"] * kMegabyte);
  }
  return ranks.finish("what loaders read is not recorded");
}

std::string judge_pinned(const RuleData& data, const Parameters&, Finding& result) {
  std::int64_t unknown = 0;
  Json all = Json::array();
  for (const LoaderSeries& loader : data.loaders) {
    if (!loader.pinned) {
      ++unknown;
      continue;
    }
    result.datapoints += loader.records;
    result.triggered += *loader.pinned ? 0 : 1;
    all.push_back({{"rank", loader.rank}, {"pinned", *loader.pinned}});
  }
  if (all.empty()) return "whether batches are pinned is not recorded";
  const auto count = static_cast<std::int64_t>(data.loaders.size());
  result.counts = {{"ranks", count},
                   {"not_known", unknown},
                   {"pinned", count - unknown - result.triggered},
                   {"triggered", result.triggered}};
  result.details["ranks"] = std::move(all);
  return {};
}

constexpr double kMainWaitingShare = 0.6;

const Prediction* prediction(const Analysis& analysis, const std::string& name) {
  for (const Prediction& prediction : analysis.what_if.changes) {
    if (prediction.name == name) return &prediction;
  }
  return nullptr;
}

// Returns text on how often a batch was not ready, over all ranks or on `rank`.
std::string queue_text(const RunProfile& run, int rank) {
  std::int64_t records = 0, empty = 0;
  for (const LoaderSeries& loader : loader_series(run)) {
    if (rank >= 0 && loader.rank != rank) continue;
    records += loader.records;
    empty += loader.empty;
  }
  if (records == 0) return {};
  return fmt::format("; its queue was empty after {} of {} batches", count_text(empty), count_text(records));
}

constexpr double kSmallRequest = 128 << 10;  // bytes: a disk reads larger ones faster

// True if pictures could be decoded at a fraction of their size but are not.
bool decodes_in_full(const RunProfile& run) {
  const auto scaled = value_at<bool>(object_at(run.experiment, "data"), "scaled_decoding");
  return has_data_keys(run) && !scaled.value_or(true);
}

// True if the workers wait for a core for over half as long as they have one, and longer than for storage.
bool lack_cores(const LoaderUse& use) {
  return use.no_core_share() > std::max(use.cpu_share() / 2, use.storage_share());
}

// Returns the seconds for which the training waited for a core because workers that lack cores took it: the mean of the
// ranks, or the seconds of `rank`. 0: other programs take the cores.
double cores_taken_s(const Evidence& evidence, int rank) {
  const std::optional<LoaderUse> use = loader_use(evidence.run, rank);
  if (!use || !lack_cores(*use)) return 0;
  double without_s = 0, ranks = 0;
  for (std::size_t r = 0; r < evidence.run.ranks.size(); ++r) {
    if (rank >= 0 && evidence.run.ranks[r].rank != rank) continue;
    if (evidence.contention[r].foreign_percent.value_or(0) >= kForeignPercent) return 0;
    without_s += evidence.contention[r].taken_s();
    ++ranks;
  }
  return ranks > 0 ? std::min(without_s, to_seconds(use->usage.cpu_ns)) / ranks : 0;
}

// Returns the advice for the states in which the workers spend their time, and adds these to the evidence. `throttled`:
// a CPU quota stops the ranks.
std::string loader_advice(const RunProfile& run, Finding& finding, bool throttled) {
  const std::optional<LoaderUse> use = loader_use(run, finding.rank);
  if (!use || use->read_s <= 0) {
    return "load faster: data in memory or in larger files, prepared before the training, or read ahead by threads "
           "(dtrain's own data sets, docs/data.md) or processes (num_workers of a DataLoader)";
  }
  const std::string workers = loader_setting(run, "workers");
  finding.evidence += fmt::format(
      "; {:.3g} workers spend {} of their time on a core, {} ready without one, {} waiting for storage", use->workers,
      format_percent(use->cpu_share()), format_percent(use->no_core_share()), format_percent(use->storage_share()));
  if (lack_cores(*use) && throttled) {
    return "raise the CPU quota of the cgroup, which stops the workers as well as the training";
  }
  if (lack_cores(*use)) return "give the workers cores: fewer ranks, or more cores for each (resources.cores_per_slot)";
  if (use->cpu_share() >= use->storage_share()) {
    if (decodes_in_full(run)) finding.patch = {"data.scaled_decoding=true"};
    return fmt::format(
        "more loader workers ({}: auto adds them while cores are free; more cores: resources.cores_per_slot), or "
        "cheaper samples: {}",
        workers,
        finding.patch.empty() ? "data that is prepared before the training"
                              : fmt::format("large JPEGs decoded at a fraction of their size ({}), or pictures stored "
                                            "at the size that is needed",
                                            keys_text(finding.patch)));
  }
  const auto request = use->bytes_of_request();
  if (use->usage.disk_bytes == 0) {
    return fmt::format(
        "no disk gave them anything, so they wait for something else: a lock, a network, a sleep in the data set's own "
        "code; more workers ({}) and more batches ahead ({}) hide it",
        workers, loader_setting(run, "prefetch"));
  }
  if (request && *request < kSmallRequest) {
    finding.evidence += fmt::format("; they read {} in requests of {} each (mean)",
                                    format_bytes(static_cast<double>(use->usage.disk_bytes)), format_bytes(*request));
    return fmt::format(
        "small random reads: keep the samples in shards or in one file, shuffle in a smaller window ({}), or read "
        "more of them at once ({})",
        loader_setting(run, "shuffle_window"), workers);
  }
  return fmt::format("more reads at once ({}), more batches ahead ({}), or a faster disk", workers,
                     loader_setting(run, "prefetch"));
}

}  // namespace

Judgement dataloader() {
  return {.id = "Dataloader",
          .text = "Too few or too many loader threads for the cores of a host.",
          .group = "report",
          .unit = "hosts",
          .title =
              "Compares the number of loader workers of a host with its CPUs: too few may leave the training "
              "waiting for data, too many take CPUs away from computing.",
          .advice =
              "Where the training waits for data: more loader workers (data.workers, or LoaderSettings::workers in a "
              "program; auto adds them as long as the rank's cores are free). Too many: fewer of them, or fewer ranks.",
          .parameters = {real("min_threshold", "Fewer loader threads than this percentage of the cores are too few.",
                              70, {0, 10'000}),
                         real("max_threshold", "More loader threads than this percentage of the cores are too many.",
                              200, {0, 10'000})},
          .judge = judge_workers};
}

// Compares the samples a second that a rank's loader can make with those that its training takes when it never waits
// for data.
Judgement loader_rate() {
  return {.id = "LoaderRate",
          .text = "A loader that delivers samples more slowly than the training uses them.",
          .group = "system",
          .unit = "ranks",
          .title =
              "Compares the batches a second that a rank's loader can make with those its training takes where it "
              "never waits.",
          .advice =
              "More loader workers (data.workers, or LoaderSettings::workers in a program), or cheaper samples: "
              "data in memory (data.in_memory), or prepared before the training.",
          .parameters = {real("threshold", "The loader's rate, in percent of the training's, must be above this.", 100,
                              {0, 10'000})},
          .judge = judge_rate};
}

// Loaders whose workers wait for storage because they read in small pieces from a disk that is fast only with large
// ones.
Judgement small_reads() {
  return {
      .id = "SmallReads",
      .text = "A training that waits for small reads from a disk that could be read faster.",
      .group = "system",
      .unit = "ranks",
      .title =
          "Looks for ranks that wait for data while their loader workers wait for storage, which they read in "
          "small pieces and far more slowly than a disk can be read.",
      .advice =
          "Keep the samples in shards or in one file, and shuffle in a window (data.shuffle_window, or "
          "LoaderSettings::shuffle_window in a program); or read more of them at once (data.workers, "
          "LoaderSettings::workers).",
      .parameters = {real("request", "Requests of less than this, on average, are small.", 128, {0, 1'000'000}, "KB"),
                     real("rate",
                          "What a disk of this run can do in large requests; reading at less than half of it is slow.",
                          200, {0, 1'000'000}, "MB/s"),
                     real("waiting",
                          "Ranks that wait for data for less than this percentage of their time are not judged.", 5)},
      .judge = judge_reads};
}

// Batches that are copied to a GPU from memory that the system may move: their copy does not overlap with computing.
Judgement pinned_memory() {
  return {.id = "PinnedMemory",
          .group = "model",
          .unit = "ranks",
          .title =
              "Looks at whether loaders hand over batches in page-locked (pinned) memory, from which copies to a "
              "GPU are faster and overlap with computing.",
          .advice =
              "Leave data.pin on (LoaderSettings::pin in a program); in a BatchSource of your own: "
              "at::Tensor::pin_memory().",
          .without_gpus = kNoGpu,
          .judge = judge_pinned};
}

std::vector<Finding> find_loader(const Run& run) {
  const auto& [evidence, analysis, stalls] = run;
  const Prediction* const free = prediction(analysis, "free_loader");
  if (free == nullptr) return {};
  const double stalled_s = stalls && stalls->phase == profile::Phase::kDataloaderNext ? stalls->seconds : 0;
  Finding finding{.cause = "slow_loader", .seconds = free->saved_s - stalled_s, .fault = true};
  std::string who = "the ranks wait";
  for (const Straggler& straggler : analysis.stragglers.ranks) {
    if (straggler.cause != "loader" || straggler.cost_s < kMainWaitingShare * finding.seconds) continue;
    finding.rank = straggler.rank;
    finding.host = straggler.host;
    who =
        rank_name(evidence.run.ranks[index_of_rank(evidence.run, straggler.rank)]) + " waits, and the others with it,";
    break;
  }
  const double taken_s = cores_taken_s(evidence, finding.rank);
  finding.title = fmt::format("{} {} for data", who, seconds_text(finding.seconds));
  if (taken_s > finding.seconds) {  // some of it within dataloader_next, so the two are not added
    const std::string whose =
        finding.rank < 0 ? "the ranks' cores"
                         : "the core of " + rank_name(evidence.run.ranks[index_of_rank(evidence.run, finding.rank)]);
    finding.title = fmt::format("loading data takes {} for {}", whose, seconds_text(taken_s));
    finding.seconds = taken_s;
  }
  finding.evidence =
      fmt::format("without dataloader_next a batch would take {} less ({} instead of {}, means), in {}{}{}",
                  seconds_text(analysis.what_if.step_s - free->step_s), seconds_text(free->step_s),
                  seconds_text(analysis.what_if.step_s), count_text(evidence.rows.steps(), "batch"),
                  less_stalls(stalled_s), queue_text(evidence.run, finding.rank));
  if (taken_s > 0) {
    finding.evidence += fmt::format("; the training was ready without a core for up to {}, while workers had it",
                                    seconds_text(taken_s));
  }
  finding.advice = loader_advice(evidence.run, finding, is_throttled(evidence));
  if (finding.rank >= 0) finding.advice += "; compare what this rank reads, and from which disk, with the others";
  return {finding};
}

}  // namespace dtrain::analysis::findings
