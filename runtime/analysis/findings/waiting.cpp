// Ranks that wait for each other: slow ranks, uneven shards of the data, the exchange itself, and each in turn.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "findings/judgement.h"
#include "measure/predictor.h"
#include "measure/system_metrics.h"
#include "read/json_fields.h"
#include "read/text.h"

namespace dtrain::analysis::findings {
namespace {

constexpr std::size_t kParts = 20;  // of a run, in which ranks' speeds are compared
constexpr std::size_t kLeastRowsOfPart = 10;
constexpr double kCoresDiffer = 1.1;  // virtual cores of one kind, over a run of some seconds
constexpr double kFarBeyond = 1.2;

struct Words {
  const char* cause;
  const char* what;
  const char* advice;
};

Words words_of(const std::string& cause, bool one_host, bool on_gpus) {
  if (cause == "cpu_contention") {
    return {"cpu_contention", "is slowed by other programs on its cores",
            "end those programs or move them to other cores (taskset, cgroups), or give this rank others"};
  }
  if (cause == "compute") {
    return {
        "slow_compute", "computes more slowly than the others",
        on_gpus ? "compare its GPU with theirs (model, clock speed, temperature, what else runs on it: nvidia-smi -q), "
                  "its host's cores where the GPU waits for them, and what its data costs to compute"
        : one_host ? "compare its cores with theirs (kind, clock speed, what else runs on them or beside them), and "
                     "what its data costs to compute"
                   : "compare its host with theirs (clock speed, throttling, memory bandwidth, other ranks on its "
                     "cores), and what its data costs to compute"};
  }
  if (cause == "network") {
    return {"slow_link", "is reached more slowly than the others",
            "look at its host's link: speed, duplex, errors, other traffic"};
  }
  if (cause == "exchange") {
    return {
        "slow_rank", "comes later to exchanges than its phases explain",
        "see whether something else runs on its core now and then (no core in dtrain top), and whether a longer run "
        "says the same"};
  }
  return {"slow_rank", "comes later than the others", "look at what it does in the phases named"};
}

// Returns the seconds by which a rank without a core holds up the exchange: its time without a core less the part that
// its own phases show, but at most the time of the exchanges in which it came last.
double lost_in_exchange_s(const Evidence& evidence, std::size_t rank, double late_s) {
  return std::clamp(lacking_s(evidence.contention, rank) - late_s, 0.0, evidence.waits.ranks[rank].exchange_s);
}

// True if the rank computes longer than the variation of the others' speed explains. Cores of one kind differ for
// seconds at a time because of neighbours (such as other machines on the same processor); in a short run, not every
// core meets them. Either the rank lags throughout: its median part takes longer than nine tenths of the others' parts
// and over a tenth longer than their median, and nine tenths of its parts take longer than their median. Or its mean
// exceeds the others' slowest part by a fifth. A value of the others is the median over their ranks.
bool is_beyond_variation(const Evidence& evidence, std::size_t rank) {
  const Rows& rows = evidence.rows;
  const std::size_t count = rows.rows().size();
  const std::size_t parts = std::min(kParts, count / kLeastRowsOfPart);
  if (parts < 2) return true;
  std::vector<std::vector<double>> paces(rows.ranks());
  for (std::size_t part = 0; part < parts; ++part) {
    double steps = 0;
    std::vector<double> compute_s(rows.ranks(), 0);
    for (std::size_t i = part * count / parts; i < (part + 1) * count / parts; ++i) {
      steps += static_cast<double>(rows.rows()[i].steps);
      for (std::size_t r = 0; r < rows.ranks(); ++r) {
        compute_s[r] += static_cast<double>(compute_of(rows.at(i, r))) / 1e9;
      }
    }
    for (std::size_t r = 0; r < rows.ranks(); ++r) paces[r].push_back(compute_s[r] / steps);
  }
  std::vector<double> usual_others, slow_others, slowest_others;
  for (std::size_t r = 0; r < rows.ranks(); ++r) {
    if (r == rank) continue;
    usual_others.push_back(median_low(paces[r]));
    slow_others.push_back(quantile(paces[r], 0.9));
    slowest_others.push_back(quantile(paces[r], 1));
  }
  const bool all_along = median_low(paces[rank]) > quantile(slow_others, 0.5) &&
                         quantile(paces[rank], 0.1) > quantile(usual_others, 0.5) &&
                         median_low(paces[rank]) > kCoresDiffer * quantile(usual_others, 0.5);
  return all_along || mean(paces[rank]) > kFarBeyond * quantile(slowest_others, 0.5);
}

// --- uneven shards ---

constexpr double kLeastEven = 20;  // steps
constexpr double kLikeEven = 0.1;  // difference of the samples
constexpr double kMainShardShare = 0.6;

// Two estimates of the seconds that a row would save if each rank had its fair part of the samples. `by_samples`
// assumes that computing is proportional to samples, at each rank's own pace. It is too small if a batch has a constant
// cost. `by_ranks` assumes that a sample costs the same on every rank, so a fair part takes the ranks' mean. It is too
// large if a rank computes faster while another one waits (they share a core's units or memory). The truth lies in
// between.
struct Uneven {
  double by_samples = 0, by_ranks = 0;
  Uneven& operator+=(const Uneven& other) {
    by_samples += other.by_samples;
    by_ranks += other.by_ranks;
    return *this;
  }
  double seconds() const { return (std::max(0.0, by_samples) + std::max(0.0, by_ranks)) / 2; }
};

Uneven uneven_s(const Rows& rows, std::size_t row, std::size_t most, double fair) {
  const auto count = static_cast<double>(rows.ranks());
  double mean_s = 0, slowest_s = 0;
  for (std::size_t r = 0; r < rows.ranks(); ++r) {
    const StepLine& step = rows.at(row, r);
    const double own_s = static_cast<double>(compute_of(step)) / 1e9;
    mean_s += own_s / count;
    if (step.samples > 0) slowest_s = std::max(slowest_s, own_s * fair / static_cast<double>(step.samples));
  }
  const double largest_s = static_cast<double>(compute_of(rows.at(row, most))) / 1e9;
  return {largest_s - slowest_s, largest_s - mean_s};
}

// Steps in which all ranks had equally many samples. If the run has such steps, they show the possible gain.
struct Even {
  double steps = 0, samples = 0, slowest_s = 0;
  void add(const Rows& rows, std::size_t row) {
    std::int64_t slowest_ns = 0;
    for (std::size_t r = 0; r < rows.ranks(); ++r) slowest_ns = std::max(slowest_ns, compute_of(rows.at(row, r)));
    steps += static_cast<double>(rows.rows()[row].steps);
    samples += static_cast<double>(rows.at(row, 0).samples);
    slowest_s += static_cast<double>(slowest_ns) / 1e9;
  }
  // Returns the mean seconds of a step with about `fair` samples a rank; empty: there are too few such steps.
  std::optional<double> step_s(double fair) const {
    if (steps < kLeastEven || std::abs(samples / steps - fair) > kLikeEven * fair) return std::nullopt;
    return slowest_s / steps;
  }
};

// --- the exchange ---

constexpr double kTurnsShare = 0.5;  // the least share of the waiting for which no single rank is blamed
constexpr double kLinkFault = 0.1;   // of the loop: less is what an exchange between hosts takes
constexpr double kLinkUsed = 0.5;    // of the interfaces' speed: a link that carries as much is not slow

// Returns text on the highest throughput of the hosts' interfaces, as the monitors sampled it.
std::string carried_text(const RunProfile& run) {
  double most = 0;
  for (const MonitorProfile& monitor : run.monitors) {
    for (const SystemLine& sample : monitor.samples) {
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
  for (const MonitorProfile& monitor : run.monitors) {
    double fastest = 0;
    for (const Json& interface : list_at(object_at(monitor.header, "machine"), "interfaces")) {
      if (interface.is_object()) fastest = std::max(fastest, number(interface, "bits_per_s") / 8);
    }
    if (fastest <= 0) return std::nullopt;
    slowest = std::min(slowest.value_or(fastest), fastest);
  }
  return slowest;
}

}  // namespace

std::size_t index_of_rank(const RunProfile& run, int rank) {
  for (std::size_t i = 0; i < run.ranks.size(); ++i) {
    if (run.ranks[i].rank == rank) return i;
  }
  return 0;
}

// Finds the ranks for which others wait, without the time of stalls. Ranks with a slow loader belong to find_loader(),
// uneven shards to find_uneven_shard().
std::vector<Finding> find_slow_ranks(const Run& run) {
  const auto& [evidence, analysis, stalls] = run;
  std::vector<Finding> found;
  const bool one_host = on_one_host(evidence.run);
  const bool on_gpus = ranks_have_gpus(evidence.run);
  for (const Straggler& straggler : analysis.stragglers.ranks) {
    if (straggler.cause == "none" || straggler.cause == "loader" || straggler.cause == "uneven_shard") continue;
    const std::size_t index = index_of_rank(evidence.run, straggler.rank);
    if (is_quota_doing(evidence, straggler.waited_s, static_cast<int>(index))) continue;
    const bool stalling = stalls && stalls->rank == static_cast<int>(index);
    const double stalled_s = stalling ? stalls->waited_s : 0;
    double seconds = straggler.cost_s - stalled_s;
    // If the ranks come last in turn, no single rank is the cause.
    if (seconds < 0.3 * straggler.waited_s || seconds < kLeastShare * evidence.loop_s) continue;
    const Words words = words_of(straggler.cause, one_host, on_gpus);
    std::string more, more_s;
    if (straggler.cause == "cpu_contention") {
      const double in_exchange_s = lost_in_exchange_s(evidence, index, straggler.cost_s);
      seconds += in_exchange_s;
      more_s = fmt::format(", and {} that exchanges took longer because it had no core", seconds_text(in_exchange_s));
    }
    const bool varies = straggler.cause == "compute" && !is_beyond_variation(evidence, index);
    if (varies) {
      more = fmt::format("; no more than {} of one kind differ by during a run", on_gpus ? "GPUs" : "cores");
    }
    found.push_back(
        {.cause = words.cause,
         .title = fmt::format("{} {}: the others wait {} for it", rank_name(evidence.run.ranks[index]), words.what,
                              seconds_text(seconds)),
         .evidence = fmt::format(
             "it came last to {} of {} exchanges, and the others waited {} for it: {} beyond what they wait for an "
             "ordinary rank{}{}; {}{}",
             count_text(straggler.steps), count_text(analysis.stragglers.compared_steps),
             seconds_text(straggler.waited_s), seconds_text(straggler.cost_s), less_stalls(stalled_s), more_s,
             straggler.evidence, more),
         .advice = words.advice,
         .seconds = seconds,
         .rank = straggler.rank,
         .host = straggler.host,
         .fault = !varies && straggler.cause != "exchange"});
  }
  return found;
}

std::vector<Finding> find_uneven_shard(const Run& run) {
  const Evidence& evidence = run.evidence;
  const Rows& rows = evidence.rows;
  if (rows.ranks() < 2) return {};
  double uneven_steps = 0, fair_samples = 0, largest_s = 0;
  Even even;
  Uneven all_uneven;
  std::vector<Uneven> uneven_by_rank(rows.ranks());
  std::vector<double> most_of_all(rows.ranks(), 0);
  for (std::size_t i = 0; i < rows.rows().size(); ++i) {
    std::size_t most = 0;
    double sum = 0;
    for (std::size_t r = 0; r < rows.ranks(); ++r) {
      const std::int64_t samples = rows.at(i, r).samples;
      sum += static_cast<double>(samples);
      if (samples > rows.at(i, most).samples) most = r;
      most_of_all[r] += static_cast<double>(samples);
    }
    const auto largest = static_cast<double>(rows.at(i, most).samples);
    const double fair = sum / static_cast<double>(rows.ranks());
    if (largest <= fair) {
      even.add(rows, i);
      continue;
    }
    const Uneven uneven = uneven_s(rows, i, most, fair);
    all_uneven += uneven;
    fair_samples += fair;
    largest_s += static_cast<double>(compute_of(rows.at(i, most))) / 1e9;
    uneven_by_rank[most] += uneven;
    uneven_steps += static_cast<double>(rows.rows()[i].steps);
  }
  if (uneven_steps <= 0) return {};
  const auto even_s = even.step_s(fair_samples / uneven_steps);
  const double lost_s = even_s ? largest_s - *even_s * uneven_steps : all_uneven.seconds();
  if (lost_s <= 0) return {};
  std::vector<double> by_rank;
  for (const Uneven& uneven : uneven_by_rank) by_rank.push_back(uneven.seconds());
  const auto worst = std::max_element(by_rank.begin(), by_rank.end());
  const auto at = static_cast<std::size_t>(worst - by_rank.begin());
  const bool has_main = *worst > 0 && *worst >= kMainShardShare * std::accumulate(by_rank.begin(), by_rank.end(), 0.0);
  const RankProfile& rank = evidence.run.ranks[at];
  double all = 0;
  for (const double samples : most_of_all) all += samples;
  Finding finding{
      .title = has_main ? fmt::format("{} has more data than the others: they wait while it trains, {} in all",
                                      rank_name(rank), seconds_text(lost_s))
                        : fmt::format("ranks train different numbers of samples in a batch: {} in all",
                                      seconds_text(lost_s)),
      .evidence = fmt::format("{} each (mean) in {}; {} trained {} samples, a fair share is {}",
                              seconds_text(lost_s / uneven_steps), count_text(to_count(uneven_steps), "batch"),
                              rank_name(rank), count_text(to_count(most_of_all[at])),
                              count_text(to_count(all / static_cast<double>(rows.ranks())))),
      .advice = "give every rank the same number of samples: shards of one size, or a sampler over the whole data set",
      .seconds = lost_s,
      .rank = has_main ? rank.rank : -1,
      .host = has_main ? rank.host : "",
      .fault = true};
  if (even_s) {
    finding.evidence += fmt::format("; with even shares a batch's computing takes {} instead of {}",
                                    seconds_text(*even_s), seconds_text(largest_s / uneven_steps));
  }
  return {finding};
}

std::vector<Finding> find_exchange(const Run& run) {
  const auto& [evidence, analysis, stalls] = run;
  const ExposedCommunication& exposed = evidence.exposed;
  if (evidence.run.ranks.size() < 2 || exposed.timed <= 0 || exposed.exchange_s <= 0) return {};
  const double stalled_s = stalls && stalls->phase == profile::Phase::kAllreduceWait ? stalls->seconds : 0;
  const bool is_script = evidence.run.is_of_unchanged_script();
  const double hidden_s = hidden_by_engine_s(evidence);
  const double seconds = exposed.exchange_s - std::max(stalled_s, hidden_s);
  const auto link = fit_exchange_cost(evidence);
  Finding finding{
      .title = fmt::format("exchanging gradients holds up the training for {}, beside waiting for the last rank",
                           seconds_text(seconds)),
      .evidence = fmt::format("{} exchanges held up the training for {} each (mean; median {}){}; the exposed "
                              "communication is {}, the other {} of it waiting for the last rank",
                              count_text(exposed.timed), seconds_text(exposed.exchange_mean_s()),
                              seconds_text(exposed.exchange_median_s), less_stalls(stalled_s),
                              seconds_text(exposed.seconds), seconds_text(exposed.waiting_s)),
      .advice = is_script ? "a larger batch, or several backward passes for each step (no_sync()), exchanges less often"
                          : "a larger batch, or optimizations.aggregation_frequency above 1, exchanges less often",
      .seconds = seconds};
  if (hidden_s > 0) finding.evidence += fmt::format("; dtrain's engine would hide {} of it", seconds_text(hidden_s));
  if (link) {
    const double bandwidth = link->transfer_s > 0 ? link->bytes / link->transfer_s : 0;
    finding.evidence += fmt::format("; the {} of an exchange take {}, partly behind computing (median; {}/s)",
                                    format_bytes(link->bytes), seconds_text(link->transfer_s), format_bytes(bandwidth));
  }
  const auto can = slowest_link(evidence.run);
  const bool used = link && can && link->mean_s > 0 && link->bytes / link->mean_s >= kLinkUsed * *can;
  if (on_one_host(evidence.run) || seconds < kLinkFault * evidence.loop_s || used) return {finding};
  finding.cause = "slow_link";
  finding.fault = true;
  finding.title = fmt::format("the link between {} hosts holds up the training for {}", count_hosts(evidence.run),
                              seconds_text(seconds));
  if (link && can && link->mean_s > 0) {
    finding.evidence += fmt::format("; on average {}/s, of {}/s that the interfaces can",
                                    format_bytes(link->bytes / link->mean_s), format_bytes(*can));
  }
  finding.evidence += carried_text(evidence.run);
  finding.advice = "use a faster interface (task_container_defaults.dtrain_network_interface), ";
  if (is_script) {
    finding.advice =
        "use a faster interface (DTRAIN_NETWORK_INTERFACE), or exchange less often: several backward passes "
        "for each step (no_sync())";
    return {finding};
  }
  if (!ranks_have_gpus(evidence.run)) finding.advice += "fewer bytes (optimizations.gradient_compression) ";
  finding.advice += "or fewer exchanges (optimizations.aggregation_frequency)";
  return {finding};
}

// Finds the time that ranks wait for each other without a single rank as the cause.
std::vector<Finding> find_turns(const Run& run) {
  const Evidence& evidence = run.evidence;
  const auto ranks = static_cast<double>(evidence.run.ranks.size());
  if (ranks < 2) return {};
  double blamed_s = 0;
  for (const Straggler& rank : run.analysis.stragglers.ranks) blamed_s += rank.cost_s * (ranks - 1) / ranks;
  const double waiting_s = evidence.exposed.waiting_s;
  const double seconds = waiting_s - blamed_s;
  if (seconds < kTurnsShare * waiting_s || is_quota_doing(evidence, seconds)) return {};
  return {{.title = fmt::format("the ranks wait {} for each other, each in turn", seconds_text(seconds)),
           .evidence = fmt::format(
               "in {} exchanges compared, no rank came last much longer than the others: {} waiting in all, {} of it "
               "for ranks that are waited for more than an ordinary one",
               count_text(evidence.waits.compared_steps), seconds_text(waiting_s), seconds_text(blamed_s)),
           .advice = fmt::format(
               "their batches vary: larger batches and fewer exchanges ({}) even that out; other programs on the same "
               "cores make it worse",
               evidence.run.is_of_unchanged_script() ? "no_sync()" : "optimizations.aggregation_frequency"),
           .seconds = seconds}};
}

// Finds that compressing gradients takes longer than it saves.
std::vector<Finding> find_compression(const Run& run) {
  const auto& compression = run.analysis.summary.compression;
  if (!compression || !(compression->gained_s.value_or(0) < 0)) return {};
  const double lost_s = -*compression->gained_s;
  const std::vector<std::string> patch = {"optimizations.gradient_compression=false"};
  return {{.title = fmt::format("compressing gradients ({}) takes {} more than it saves", compression->kind,
                                seconds_text(lost_s)),
           .evidence = compression->text,
           .advice = "switch it off (" + keys_text(patch) + ")",
           .patch = patch,
           .seconds = lost_s}};
}

}  // namespace dtrain::analysis::findings
