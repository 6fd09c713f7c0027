// Finds whether the run's cores would train faster with more ranks of fewer threads or fewer ranks of more threads.
//
// The step is predicted from the step as measured (docs/performance.md, "Ranks or threads"). R ranks become N on the
// same cores, with the same global batch.
//  - Products and convolutions make the same FLOPs on the same cores: their time at the calibrated rate stays.
//  - Each rank reads all weights in forward and in backward and writes all gradients, whatever its batch: this traffic
//    is proportional to N. It counts as far as products take longer than their FLOPs need at the calibrated rate.
//  - Replicated updates read and write everything on each rank as well; sharded ones do not change.
//  - The exchange moves the gradients of N - 1 ranks: exposed communication is multiplied by (N-1)/(R-1).
//  - Fewer ranks have more threads: other operators are assumed to gain nothing from them, so they take R/N as long.
//  - More ranks have fewer threads: the part of the threads' time in which they had no work (by the CPU time of the
//    ranks) falls by Amdahl's law. With one rank the exchange is not known: it is predicted from the bytes of the
//    gradients and the memory's bandwidth.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "findings/judgement.h"
#include "measure/contention.h"
#include "measure/roofline.h"
#include "read/json_fields.h"
#include "read/text.h"

namespace dtrain::analysis::findings {
namespace {

constexpr double kLeastGain = 0.1;
constexpr double kMostForeign = 10;    // percent of a core that other programs take
constexpr double kWeightPasses = 3;    // of a batch: read in forward, read in backward, gradients written
constexpr double kExchangePasses = 3;  // of the gradients of a rank: both ranks' read, the sum written

// Parts of a step in seconds, mean over ranks.
struct DivisionParts {
  double step_s = 0;
  double traffic_s = 0;  // of weights and gradients beyond the FLOPs' time
  double moving_s = 0;   // in operators without FLOPs
  double update_s = 0;   // replicated; 0: sharded
  double exposed_s = 0;
  double exchange_s = 0;  // an exchange of two ranks at the memory's bandwidth; used with one rank
  double busy = 1;        // share of the threads' time in which they work
};

struct DivisionGuess {
  int ranks = 0, threads = 0;
  double step_s = 0;
};

class DivisionFinder {
 public:
  DivisionFinder(const Evidence& evidence, const Analysis& analysis)
      : evidence_(evidence), what_if_(analysis.what_if) {}

  std::vector<Finding> find() {
    if (!read_settings() || !read()) return {};
    std::optional<DivisionGuess> best;
    for (int ranks = 1; ranks <= ranks_ * threads_; ++ranks) {
      if (most_ranks_ > 0 && ranks > most_ranks_) break;
      if (ranks == ranks_ || ranks_ * threads_ % ranks != 0 || global_batch_ % ranks != 0) continue;
      if (std::max(ranks, ranks_) % std::min(ranks, ranks_) != 0) continue;
      const DivisionGuess guess{ranks, ranks_ * threads_ / ranks, predict(ranks)};
      if (!best || guess.step_s < best->step_s) best = guess;
    }
    if (!best || best->step_s <= 0 || parts_.step_s / best->step_s - 1 < kLeastGain) return {};
    const double steps = static_cast<double>(evidence_.rows.steps());
    const double saved_s = (parts_.step_s - best->step_s) * steps;
    const std::string asked = division_text(best->ranks, best->threads);
    const std::vector<std::string> patch = patch_of(*best);
    return {
        {.title = fmt::format("{} on the same cores are predicted to train {:.0f}% faster than {}, which saves {}",
                              asked, 100 * (parts_.step_s / best->step_s - 1), division_text(ranks_, threads_),
                              seconds_text(saved_s)),
         .evidence = reason(*best),
         .advice = fmt::format("set {}{}: a batch is predicted to take {} instead of {}; another division gives "
                               "other bits",
                               keys_text(patch), cores_per_slot_ == 0 ? ", or auto, which measures the divisions" : "",
                               seconds_text(best->step_s), seconds_text(parts_.step_s)),
         .patch = patch,
         .seconds = saved_s}};
  }

 private:
  static std::string division_text(int ranks, int threads) {
    return count_of(ranks, "rank") + " x " + count_of(threads, "thread");
  }

  // If cores_per_slot is a number, more or fewer ranks would have more or fewer cores in all, and auto is refused.
  std::vector<std::string> patch_of(const DivisionGuess& best) const {
    std::vector<std::string> patch = {fmt::format("resources.slots_per_trial={}", best.ranks)};
    if (cores_per_slot_ != 0) {
      patch.push_back(fmt::format("resources.cores_per_slot={}", ranks_ * cores_per_slot_ / best.ranks));
    }
    return patch;
  }

  // Returns false if the experiment cannot divide these cores otherwise: a file has declared the slots, or the slots
  // are mpirun's or Slurm's, or it uses local steps, with which another number of ranks trains something else.
  bool read_settings() {
    const Json& plan = evidence_.run.plan;
    const Json* const experiment = find_object(plan, "experiment");
    if (!experiment) return true;
    if (text(plan, "cluster") != "this machine") return false;
    if (!experiment->value("/optimizations/local_sgd"_json_pointer, Json()).is_null()) return false;
    const Json& resources = object_at(*experiment, "resources");
    const auto bounded = [&](const char* key, int otherwise) {
      return static_cast<int>(std::clamp<std::int64_t>(integer(resources, key, otherwise), 0, kLargestWorld));
    };
    cores_per_slot_ = bounded("cores_per_slot", cores_per_slot_);
    most_ranks_ = bounded("max_slots", most_ranks_);
    return true;
  }

  // Returns false if a number is missing or the ranks are not on the cores of one host.
  bool read() {
    const RunProfile& run = evidence_.run;
    const Roofline& roofline = evidence_.roofline;
    if (!roofline.limits || !roofline.limits->memory_gb_s || roofline.operators.empty() || roofline.samples <= 0) {
      return false;
    }
    // If other programs use the cores, the division causes neither the threads' idle time nor the waiting.
    for (const Contention& contention : evidence_.contention) {
      if (contention.foreign_percent.value_or(0) > kMostForeign) return false;
    }
    std::set<std::string> hosts;
    for (const RankProfile& rank : run.ranks) hosts.insert(rank.host);
    ranks_ = static_cast<int>(run.ranks.size());
    threads_ = roofline.limits->threads;
    if (hosts.size() != 1 || ranks_ < 1 || threads_ < 1 || ranks_ * threads_ < 2) return false;
    global_batch_ = number(run.plan, "global_batch_size") > 0
                        ? static_cast<std::int64_t>(number(run.plan, "global_batch_size"))
                        : roofline.samples * ranks_;
    weights_bytes_ = number(object_at(run.plan, "model"), "bytes");
    parts_.step_s = what_if_.step_s;
    return parts_.step_s > 0 && read_operators() && read_steps();
  }

  bool read_operators() {
    const Roofline& roofline = evidence_.roofline;
    double beyond_s = 0;
    for (const OperatorLimit& operation : roofline.operators) {
      if (operation.flops == 0) {
        parts_.moving_s += operation.seconds;
        continue;
      }
      const auto rate = gflops_of(*roofline.limits, operation.dtype);
      if (!rate) return false;
      beyond_s += std::max(0.0, operation.seconds - static_cast<double>(operation.flops) / (*rate * kGiga));
    }
    const double bandwidth = *roofline.limits->memory_gb_s * kGiga;
    parts_.traffic_s = std::min(beyond_s, kWeightPasses * weights_bytes_ / bandwidth);
    // Each of two ranks has half of this rank's bandwidth.
    parts_.exchange_s = 2 * kExchangePasses * weights_bytes_ / bandwidth;
    return true;
  }

  bool read_steps() {
    const RunProfile& run = evidence_.run;
    std::int64_t update_ns = 0, steps = 0;
    for (const RankProfile& rank : run.ranks) {
      update_ns += rank.phase_ns(profile::Phase::kOptimizerStep);
      steps += rank.step_count();
    }
    if (steps == 0) return false;
    if (!updates_one_copy(run)) parts_.update_s = static_cast<double>(update_ns) / 1e9 / static_cast<double>(steps);
    parts_.exposed_s = evidence_.exposed.seconds * ranks_ / static_cast<double>(steps);
    parts_.busy = busy_share();
    return true;
  }

  // Returns the share of the threads' time in which they work; 1 if it is not known.
  double busy_share() const {
    double sum = 0, count = 0;
    for (const MonitorProfile& monitor : evidence_.run.monitors) {
      for (const SystemLine& sample : monitor.samples) {
        for (const ProcessLine& process : sample.processes) {
          const RankProfile* const rank = evidence_.run.find_rank(process.rank);
          const auto loop = rank ? rank->loop() : std::nullopt;
          if (!loop || sample.time_ns - sample.interval_ns < loop->first || sample.time_ns > loop->second) continue;
          sum += process.cpu_percent;
          ++count;
        }
      }
    }
    return count > 0 ? std::clamp(sum / count / 100 / threads_, 1.0 / threads_, 1.0) : 1;
  }

  // Returns the time with `threads` threads over that with one thread, if `busy` of the time of threads_ is used
  // (Amdahl).
  double time_with(int threads) const {
    if (threads_ == 1) return 1;
    const double serial = (1 / parts_.busy - 1) / (threads_ - 1);
    return serial + (1 - serial) / threads;
  }

  double predict(int ranks) const {
    const double more = static_cast<double>(ranks) / ranks_;
    double step_s = parts_.step_s + (more - 1) * (parts_.traffic_s + parts_.update_s);
    if (ranks_ > 1) step_s += ((ranks - 1.0) / (ranks_ - 1) - 1) * parts_.exposed_s;
    if (ranks < ranks_) return step_s + (1 / more - 1) * parts_.moving_s;
    // There are `more` times as many ranks, each with its part of the work and its part of the threads.
    const double work_s = std::max(0.0, parts_.step_s - parts_.exposed_s);
    step_s += work_s * (time_with(threads_ * ranks_ / ranks) / time_with(threads_) / more - 1);
    return ranks_ > 1 ? step_s : step_s + parts_.exchange_s * (ranks - 1);
  }

  std::string reason(const DivisionGuess& best) const {
    const std::string rate = fmt::format("at the {}/s of this machine's memory",
                                         amount_text(*evidence_.roofline.limits->memory_gb_s * kGiga, "B"));
    if (best.ranks < ranks_) {
      return fmt::format(
          "of {} a batch, {} are each rank's reading of {} of weights and writing of gradients beyond what its {} "
          "samples' FLOPs take ({}), {} replicated updates, {} exposed communication; operators without FLOPs ({}) are "
          "taken to gain nothing from more threads",
          seconds_text(parts_.step_s), seconds_text(parts_.traffic_s), amount_text(weights_bytes_, "B"),
          count_text(evidence_.roofline.samples), rate, seconds_text(parts_.update_s), seconds_text(parts_.exposed_s),
          seconds_text(parts_.moving_s));
    }
    return fmt::format(
        "the {} threads of a rank work {:.0f}% of the time; more ranks of fewer threads leave less of it unused, which "
        "is more than their reading of {} of weights each and an exchange of {} cost ({})",
        threads_, 100 * parts_.busy, amount_text(weights_bytes_, "B"),
        seconds_text(ranks_ > 1 ? parts_.exposed_s : parts_.exchange_s * (best.ranks - 1)), rate);
  }

  const Evidence& evidence_;
  const WhatIf& what_if_;
  int ranks_ = 0, threads_ = 0;
  int cores_per_slot_ = 0, most_ranks_ = 0;  // of the experiment; 0: auto, no limit
  std::int64_t global_batch_ = 0;
  double weights_bytes_ = 0;
  DivisionParts parts_;
};

}  // namespace

// Finds another division of the same cores among ranks and threads (resources.slots_per_trial) if it is predicted to be
// at least 10% faster.
std::vector<Finding> find_division(const Run& run) {
  if (is_throttled(run.evidence)) return {};  // computing is as slow as the quota makes it
  return DivisionFinder(run.evidence, run.analysis).find();
}

}  // namespace dtrain::analysis::findings
