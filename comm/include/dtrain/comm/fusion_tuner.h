// Finds, during the first steps of a run, the fusion plan that hides most of the communication behind backward.
//
// It measures the link (a few all_reduces at the start) and the times at which backward finishes each gradient. From
// these it computes the plans that should be best (best_cuts). Then the default, these plans, and a few even divisions
// of the gradients take turns. A plan replaces the default only if a sign test over the paired steps shows with
// confidence that it is faster. A faster plan has a shorter time from the start of backward until all gradients are
// exchanged, because this time decides how long a step takes. Its exposed communication must not be longer. Exposed
// communication alone does not suffice: exchanges during backward take cores from backward, which it does not show.
// Tuning takes at most kMaxSteps steps; without a clear winner the default stays. Rank 0 makes every decision from the
// figures of all ranks, so all ranks change plans at the same step.
//
// On a device the times of a step arrive a few steps later, when the device has finished it. The tuner knows the plan
// of each step whose times have not arrived. A stage ends when all its times are there; until then further steps do not
// count.
//
// Owned and called by the training thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/communicator.h"
#include "dtrain/comm/fusion_plan.h"

namespace dtrain::comm {

// Measures all_reduces of a few sizes on `communicator`, for about a second at most. `host`: carries the times from
// rank to rank; on CPUs the same. Collective; all ranks get the same result.
LinkModel measure_link(Communicator& communicator, Communicator& host);
// The most operations on `communicator` that this takes, with the allocation of its memory.
inline constexpr std::uint64_t kMostLinkOperations = 25;

// True if both may be measurements of the same link that differ only by noise. A plan that was tuned for one then suits
// the other.
bool alike(const LinkModel& a, const LinkModel& b);

// Returns the maximum of each value over the ranks. Collective.
std::vector<double> max_over_ranks(Communicator& communicator, std::span<const double> values);

// Buckets close at the threshold. Once the ready times of gradients are known, they also close at gaps.
struct FusionRule {
  std::int64_t threshold_bytes = 64ll << 20;
  double cycle_us = 0;  // 0: gaps do not matter
};

// Times of one step's exchange on this rank, in microseconds.
struct ExchangeTimes {
  double exchanged_us = 0;  // from the start of backward until every bucket was complete
  double exposed_us = 0;    // the part of it that the training thread spent on the exchange instead of backward
};

class FusionTuner {
 public:
  static constexpr int kMaxSteps = 100;

  // Steps after a step until its times must have arrived.
  static constexpr int kMostLag = 3;

  // `rule`: makes the default plan. `gradients`: the communicator of the gradients; `host`: that of numbers in host
  // memory. `known`: the cuts that an earlier run found, which are then used at once. Collective unless `known` is
  // given on every rank (rank 0 chooses its value; all ranks must get the same).
  FusionTuner(std::vector<FusionItem> items, const FusionRule& rule, Communicator& gradients, Communicator& host,
              const Logger& log, const std::optional<std::vector<std::size_t>>& known = std::nullopt);

  // Returns the plan of the next step.
  const FusionPlan& plan() const { return plans_[current_]; }
  bool done() const { return stage_ == Stage::kDone; }

  // To be called after every step that has exchanged gradients, until done(). May change plan().
  void end_step();
  // To be called for each of these steps, in their order, when its times are known, after end_step() in the same step
  // on all ranks. `ready_us`: when each gradient was ready (microseconds from the start of backward; negative: not in
  // this step); read only while wants_ready_times(). `times`: those of the exchange. Some calls are collective. May
  // change plan().
  void add_times(std::span<const double> ready_us, const ExchangeTimes& times);
  // True if the ready times of the next step may be read.
  bool wants_ready_times() const { return stage_ == Stage::kWarmUp || stage_ == Stage::kReadyTimes; }

  // Once done(), these return the plan's cuts and the measurements, for plan.json and the log.
  const std::vector<std::size_t>& cuts() const { return cuts_[current_]; }
  const LinkModel& link() const { return link_; }
  std::span<const double> ready_us() const { return ready_us_; }
  Json report() const;

 private:
  enum class Stage { kWarmUp, kReadyTimes, kComparing, kFinal, kDone };
  // A step whose times have not arrived.
  struct Step {
    int stage = 0;  // number of the stage that counts it; -1: none does
    std::size_t plan = 0;
  };
  void begin(Stage stage);
  std::size_t plan_of_step(int step) const;  // in this stage
  int steps_of_stage() const;
  void choose_candidates();
  void end_comparing();
  void end_final();
  struct Shared {
    std::vector<double> exchanged_us, exposed_us;
  };
  std::vector<Shared> share_times();
  void log_choice() const;

  std::vector<FusionItem> items_;
  FusionRule rule_;
  Communicator& host_;
  Logger log_;
  LinkModel link_;
  Stage stage_ = Stage::kWarmUp;
  int stage_number_ = 0;
  int begun_ = 0;    // steps of this stage
  int arrived_ = 0;  // those of them whose times have arrived
  int all_steps_ = 0;
  std::deque<Step> waiting_;  // for their times, oldest first
  std::vector<std::vector<double>> ready_samples_;
  std::vector<double> ready_us_;
  std::vector<FusionPlan> plans_;               // 0: the default
  std::vector<std::vector<std::size_t>> cuts_;  // of each plan
  std::size_t current_ = 0;
  std::size_t challenger_ = 0;
  std::vector<std::vector<ExchangeTimes>> times_;  // of each plan's steps in this stage
  ExchangeTimes default_, challenging_;            // medians of the final
  int wins_ = 0, pairs_ = 0;
  bool from_cache_ = false;
};

}  // namespace dtrain::comm
