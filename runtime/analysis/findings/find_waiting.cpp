// Findings about ranks that wait: for their loaders, their cores, the exchange.
#include <algorithm>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "findings/make_findings.h"
#include "measure/contention.h"
#include "measure/predictor.h"
#include "measure/statistics.h"
#include "measure/system_metrics.h"
#include "read/json_fields.h"
#include "read/text.h"

namespace dtrain::analysis {
namespace {

constexpr double kForeignPercent = 10;  // of one core, mean over ranks
constexpr double kMainWaitingShare = 0.6;
constexpr double kLinkFault = 0.1;  // of the loop: less is what an exchange between hosts takes
constexpr double kLinkUsed = 0.5;   // of the interfaces' speed: a link that carries as much is not slow

const Prediction* prediction(const Analysis& analysis, const std::string& name) {
  for (const Prediction& one : analysis.what_if.changes) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

// Returns text on how often a batch was not ready, over all ranks or on `rank`.
std::string queue_text(const RunProfile& run, int rank) {
  std::int64_t records = 0, empty = 0;
  for (const RankProfile& one : run.ranks) {
    if (rank >= 0 && one.rank != rank) continue;
    for (const LoaderLine& line : one.loader) empty += line.queue_depth == 0 ? 1 : 0;
    records += static_cast<std::int64_t>(one.loader.size());
    for (const WindowLine& window : one.windows) {
      records += window.loader_records;
      empty += window.loader_empty;
    }
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
      "; {:.3g} workers spend {} of their time on a core, {} ready without one, {} waiting "
      "for storage",
      use->workers, format_percent(use->cpu_share()), format_percent(use->no_core_share()),
      format_percent(use->storage_share()));
  if (lack_cores(*use) && throttled) {
    return "raise the CPU quota of the cgroup, which stops the workers as well as the training";
  }
  if (lack_cores(*use)) {
    return "give the workers cores: fewer ranks, or more cores for each (resources.cores_per_slot)";
  }
  if (use->cpu_share() >= use->storage_share()) {
    return fmt::format(
        "more loader workers ({}: auto adds them while cores are free; more cores: resources.cores_per_slot), or "
        "cheaper samples: {}",
        workers,
        decodes_in_full(run)
            ? "large JPEGs decoded at a fraction of their size (data.scaled_decoding: true), or pictures "
              "stored at the size that is needed"
            : "data that is prepared before the training");
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

// Returns text on the highest throughput of the hosts' interfaces, as the agents sampled it.
std::string carried_text(const RunProfile& run) {
  double most = 0;
  for (const AgentProfile& agent : run.agents) {
    for (const SystemLine& sample : agent.samples) {
      for (const auto& [name, value] : sample.metrics) {
        if (name == "net_throughput_sent" || name == "net_throughput_recv") most = std::max(most, value);
      }
    }
  }
  return most > 0 ? fmt::format("; a host's interfaces carried {}/s at most", format_bytes(most)) : std::string();
}

// Returns bytes a second of the slowest host, each host with its fastest interface. Empty: the interfaces of a host
// report no speed.
std::optional<double> slowest_link(const RunProfile& run) {
  std::optional<double> slowest;
  for (const AgentProfile& agent : run.agents) {
    double fastest = 0;
    for (const Json& interface : list_at(object_at(agent.header, "machine"), "interfaces")) {
      if (interface.is_object()) fastest = std::max(fastest, number(interface, "bits_per_s") / 8);
    }
    if (fastest <= 0) return std::nullopt;
    slowest = std::min(slowest.value_or(fastest), fastest);
  }
  return slowest;
}

}  // namespace

std::optional<Finding> find_loader(const Evidence& evidence, const Analysis& analysis,
                                   const std::optional<Stalls>& stalls) {
  const Prediction* const free = prediction(analysis, "free_loader");
  if (free == nullptr) return std::nullopt;
  Finding finding;
  finding.id = "loader";
  finding.cause = "slow_loader";
  finding.fault = true;
  finding.seconds = free->saved_s;
  const double stalled_s = stalls && stalls->phase == profile::Phase::kDataloaderNext ? stalls->seconds : 0;
  finding.seconds -= stalled_s;
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
  return finding;
}

std::optional<Finding> find_contended_hosts(const Evidence& evidence, const Analysis& analysis) {
  std::set<int> named;
  for (const Straggler& straggler : analysis.stragglers.ranks) {
    if (straggler.cause == "cpu_contention" && straggler.cost_s >= kLeastShare * evidence.loop_s) {
      named.insert(straggler.rank);
    }
  }
  double foreign = 0, wait_s = 0;
  std::size_t count = 0;
  for (std::size_t r = 0; r < evidence.run.ranks.size(); ++r) {
    if (named.contains(evidence.run.ranks[r].rank)) continue;
    foreign += evidence.contention[r].foreign_percent.value_or(0);
    wait_s += evidence.contention[r].taken_s();
    ++count;
  }
  if (count == 0 || foreign / static_cast<double>(count) < kForeignPercent) return std::nullopt;
  Finding finding;
  finding.id = "contention";
  finding.cause = "cpu_contention";
  finding.fault = true;
  finding.seconds = wait_s / static_cast<double>(count);
  finding.title = fmt::format("programs outside the run take the ranks' cores for {}", seconds_text(finding.seconds));
  finding.evidence = fmt::format(
      "they load a rank's cores with {:.0f}% of a core on average, and a training thread had no core for {} (mean of "
      "{}; "
      "no_core in the waterfall: it lies across its parts)",
      foreign / static_cast<double>(count), seconds_text(finding.seconds),
      named.empty() ? std::string("the ranks") : fmt::format("the {} without a finding of their own", count));
  finding.advice = "end them or move them to cores without ranks, or use fewer slots on these hosts";
  return finding;
}

std::optional<Finding> find_exchange(const Evidence& evidence, const std::optional<Stalls>& stalls) {
  const ExposedCommunication& exposed = evidence.exposed;
  if (evidence.run.ranks.size() < 2 || exposed.timed <= 0 || exposed.exchange_s <= 0) return std::nullopt;
  Finding finding;
  finding.id = "exchange";
  const double stalled_s = stalls && stalls->phase == profile::Phase::kAllreduceWait ? stalls->seconds : 0;
  finding.seconds = exposed.exchange_s - stalled_s;
  const auto link = fit_exchange_cost(evidence);
  finding.evidence = fmt::format(
      "{} exchanges held up the training for {} each (mean; median {}){}; the exposed communication is {}, the other "
      "{} "
      "of it waiting for the last rank",
      count_text(exposed.timed), seconds_text(exposed.exchange_mean_s()), seconds_text(exposed.exchange_median_s),
      less_stalls(stalled_s), seconds_text(exposed.seconds), seconds_text(exposed.waiting_s));
  if (link) {
    const double bandwidth = link->transfer_s > 0 ? link->bytes / link->transfer_s : 0;
    finding.evidence += fmt::format("; the {} of an exchange take {}, partly behind computing (median; {}/s)",
                                    format_bytes(link->bytes), seconds_text(link->transfer_s), format_bytes(bandwidth));
  }
  const auto can = slowest_link(evidence.run);
  const bool used = link && can && link->mean_s > 0 && link->bytes / link->mean_s >= kLinkUsed * *can;
  if (!on_one_host(evidence.run) && finding.seconds >= kLinkFault * evidence.loop_s && !used) {
    finding.cause = "slow_link";
    finding.fault = true;
    finding.title = fmt::format("the link between {} hosts holds up the training for {}", count_hosts(evidence.run),
                                seconds_text(finding.seconds));
    if (link && can && link->mean_s > 0) {
      finding.evidence += fmt::format("; on average {}/s, of {}/s that the interfaces can",
                                      format_bytes(link->bytes / link->mean_s), format_bytes(*can));
    }
    finding.evidence += carried_text(evidence.run);
    finding.advice = "use a faster interface (task_container_defaults.dtrain_network_interface), ";
    if (!ranks_have_gpus(evidence.run)) finding.advice += "fewer bytes (optimizations.gradient_compression) ";
    finding.advice += "or fewer exchanges (optimizations.aggregation_frequency)";
    return finding;
  }
  finding.cause = "exchange";
  finding.title = fmt::format("exchanging gradients holds up the training for {}, beside waiting for the last rank",
                              seconds_text(finding.seconds));
  finding.advice = "a larger batch, or optimizations.aggregation_frequency above 1, exchanges less often";
  return finding;
}

}  // namespace dtrain::analysis
