// Divides the gradients of a run into buckets: by size at first, then by size and the gaps between gradients, or by the
// tuner. Watches the steps, changes the plan between them, and reports its cost. Training thread only.
#pragma once

#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/steps_in_flight.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/codecs.h"
#include "dtrain/comm/communicator.h"
#include "dtrain/comm/fusion_plan.h"
#include "dtrain/comm/fusion_tuner.h"
#include "exchange/autotune.h"
#include "exchange/gradient_exchange.h"
#include "model/flat_parameters.h"
#include "run_services.h"

namespace dtrain::train {

// The result of tuning, and the data from which its plan's exposed communication is predicted.
struct FusionAnswer {
  std::vector<std::size_t> cuts;  // ascending, the last is the number of gradients - 1
  comm::LinkModel link;
  std::vector<double> ready_us;  // ready time of each gradient
};

// Remembers tuned fusion plans from run to run, for each model and topology (RunCache). Any thread.
class FusionCache {
 public:
  // `folder`: empty: nothing is remembered. `key`: everything on which an answer depends.
  FusionCache(const std::filesystem::path& folder, Json key);

  // Returns the earlier answer for the same key, if there is one. A file that is damaged or of another number of
  // gradients counts as none, with a line in the log.
  std::optional<FusionAnswer> find(std::size_t gradients, const Logger& log) const;
  // Stores an answer. If that fails, the log says so, and the answer is not remembered.
  void store(const FusionAnswer& answer, const Json& report, const Logger& log) const;
  const std::filesystem::path& file() const { return cache_.file(); }

 private:
  RunCache cache_;
};

struct FusionOptions {
  std::int64_t threshold_bytes = 64ll << 20;
  double cycle_ms = 0;                 // 0: gaps between gradients do not matter
  comm::Compression compression;       // of the gradients
  bool auto_tune = false;              // then the threshold and the gaps only give the plan that the tuner has to beat
  std::filesystem::path cache_folder;  // of tuned plans; empty: none are remembered
  // Further facts on which an answer of the tuner depends.
  std::int64_t batch_per_rank = 0;
  int aggregation_frequency = 1;
  bool sharded = false;   // during the tuning
  std::string precision;  // "bf16"
  std::string gpu;        // its name; empty: the CPU
};

class Fusion {
 public:
  // Collective if gaps are measured or the tuner is on.
  Fusion(const FlatParameters& parameters, const RunServices& run, const FusionOptions& options);

  // The plan. Earlier plans stay where they are: a strategy may look at the old plan when it is given a new one.
  const comm::FusionPlan& plan() const { return plans_.back(); }
  // To be called after a step that exchanged gradients. `as_usual`: the exchange was like those of most steps; the
  // tuner does not count others. The exchange and the steps in flight outlive the settling. Collective now and then;
  // returns true if plan() has changed.
  bool end_step(GradientExchange& exchange, StepsInFlight& in_flight, bool as_usual);
  // The times that the next step has to mark on a device.
  GradientExchange::DeviceTimes device_times() const;

  // True if measurements under way may still change the plan.
  bool settling() const { return gaps_due_ || tuner_; }
  // The number of first steps that may have another plan than the steps after them. It holds even if the plan does not
  // change or is known from the start: the work of a step must not depend on the plan.
  std::int64_t settled_steps() const;
  // Forgets the exposed times: those from here on are of another strategy.
  void forget_exposed();

  // Returns for plan.json: the origin of the plan, and for each bucket bytes, gradients and the exposed time of a step,
  // predicted (if the link was measured) and measured (mean of this rank's steps with this plan).
  Json describe() const;

 private:
  static constexpr int kWarmUpSteps = 3;  // steps until allocators and caches have settled
  static constexpr int kGapSteps = 5;

  bool on_device() const { return &run_.device_communicator != &run_.communicator; }
  void add_exposed(const GradientExchange& exchange);
  // Takes the times of this step: at once, or on a device when it has ended there.
  void note_times(GradientExchange& exchange, StepsInFlight& in_flight);
  bool look_at_gaps(std::span<const double> ready_us);
  bool follow_tuner();
  void adopt(const comm::FusionPlan& next, std::string how);
  Json cache_key(const FlatParameters& parameters, const std::vector<std::size_t>& hosts) const;
  std::optional<std::vector<std::size_t>> remembered(bool several_hosts);
  void end_tuning();

  const RunServices& run_;
  comm::Communicator& communicator_;  // the host's
  const FusionOptions options_;
  std::vector<comm::FusionItem> items_;
  std::deque<comm::FusionPlan> plans_;
  std::string how_ = "threshold";
  std::optional<FusionCache> cache_;
  std::unique_ptr<comm::FusionTuner> tuner_;
  bool gaps_due_ = false;
  std::vector<ExchangeEvents::Times> arrived_;  // times of steps that were not looked at yet, oldest first
  int steps_ = 0;
  std::vector<std::vector<double>> ready_samples_;
  std::vector<double> ready_us_;  // the maximum over the ranks; empty: not measured
  std::optional<comm::LinkModel> link_;
  std::vector<double> exposed_us_;  // for each bucket the sum over the steps with this plan
  std::int64_t exposed_steps_ = 0;
};

// Writes each gradient's size in exchange order as CSV: order,name,dtype,shape,elements,bytes. Replaces the file.
void write_gradient_sizes(const std::filesystem::path& file, const FlatParameters& parameters);

}  // namespace dtrain::train
