#include "dtrain/analysis/analysis.h"

#include <algorithm>

#include "dtrain/base/clock.h"
#include "measure/evidence.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;

// Returns the nanoseconds of computing for a sample on a rank, median over its steps; 0: it trained none.
double per_sample(const RankProfile& rank) {
  std::vector<double> values;
  for (const StepLine& step : rank.steps) {
    if (step.samples > 0) values.push_back(static_cast<double>(compute_of(step)) / static_cast<double>(step.samples));
  }
  for (const WindowLine& window : rank.windows) {
    if (window.samples <= 0) continue;
    std::int64_t compute = 0;
    for (const Phase phase : {Phase::kTrainBatch, Phase::kForward, Phase::kBackward, Phase::kGraph}) {
      add_to(compute, window.phases[static_cast<std::size_t>(phase)]);
    }
    // A window counts as one step of its mean: it only has sums of samples.
    values.push_back(static_cast<double>(compute) / static_cast<double>(window.samples));
  }
  return median_low(std::move(values));
}

class PhaseSums {
 public:
  explicit PhaseSums(const RunProfile& run) : run_(run), count_(static_cast<double>(run.ranks.size())) {}
  // Returns the seconds of these phases, mean over ranks.
  double phase(std::initializer_list<Phase> phases) const {
    double sum = 0;
    for (const RankProfile& rank : run_.ranks) {
      for (const Phase phase : phases) sum += to_seconds(rank.phase_ns(phase));
    }
    return sum / count_;
  }

 private:
  const RunProfile& run_;
  double count_;
};

// Returns the parts for computing at the pace of the best rank: at the hardware's limit, and the slower rest.
std::vector<WaterfallPart> computing_parts(double ideal_s, const std::optional<double>& hardware_s) {
  if (!hardware_s) {
    return {{"compute", "train_batch and graph on every rank as fast as the best rank's median batch", ideal_s}};
  }
  return {{"hardware", "forward and backward if each operator ran at the limit of its machine", *hardware_s},
          {"slower_kernels",
           "train_batch and graph beyond that, at the best rank's median batch: kernels slower than the hardware "
           "allows, and the time between them",
           ideal_s - *hardware_s}};
}

}  // namespace

double Waterfall::part_s(const std::string& name) const {
  double seconds = 0;
  for (const WaterfallPart& part : parts) {
    const bool of_compute = name == "compute" && (part.name == "hardware" || part.name == "slower_kernels");
    if (part.name == name || of_compute) seconds += part.seconds;
  }
  return seconds;
}

Waterfall make_waterfall(const Evidence& evidence) {
  const RunProfile& run = evidence.run;
  Waterfall result;
  if (run.ranks.empty()) return result;
  const auto count = static_cast<double>(run.ranks.size());
  double best = 0;
  double missing_end_s = 0;  // of ranks whose loop ended earlier than the last rank's
  double outside_s = 0;      // of the loop, in no step
  result.wall_s = evidence.loop_s;
  for (const RankProfile& rank : run.ranks) {
    const double steps_s = to_seconds(rank.wall_ns());
    const double loop_s = std::max(rank.loop_s().value_or(0), steps_s);
    outside_s += (loop_s - steps_s) / count;
    missing_end_s += (result.wall_s - loop_s) / count;
    result.samples += static_cast<double>(rank.counts().samples);
    const double own = per_sample(rank);
    if (own > 0 && (best == 0 || own < best)) best = own;
  }
  const PhaseSums sums(run);
  const double compute_s = sums.phase({Phase::kTrainBatch, Phase::kForward, Phase::kBackward, Phase::kGraph});
  const double ideal_s = std::min(compute_s, best / 1e9 * result.samples / count);
  const auto hardware_s = evidence.roofline.ideal_s ? std::optional(std::min(ideal_s, *evidence.roofline.ideal_s))
                                                    : std::optional<double>();
  result.parts = {
      {"slower_compute", "train_batch and graph beyond that: slower ranks, slower batches, more samples on some ranks"},
      {"loading", "waiting for the next batch (dataloader_next)"},
      {"host_to_device", "copying the batch to the device (to_device)"},
      {"device_wait", "with the host's times of a run on GPUs: waiting for the GPU (device_wait)"},
      {"exchange", "of the exposed communication (allreduce_wait), the exchange itself"},
      {"waiting", "the rest of it: waiting for the rank that comes last"},
      {"optimizer", "the update (optimizer_step, step_lr_schedulers)"},
      {"metrics", "fetching and reducing metrics (from_device, reduce_metrics)"},
      {"checkpoints", "writing checkpoints (checkpoint)"},
      {"callbacks", "the trial's callbacks"},
      {"validation", "evaluating (validation)"},
      {"other", "within batches, in none of the phases (other)"},
      {"ended_early", "from the end of a rank's loop to that of the last rank's"},
      {"unattributed", "of the loop, in no recorded batch"}};
  const double values[] = {compute_s - ideal_s,
                           sums.phase({Phase::kDataloaderNext}),
                           sums.phase({Phase::kToDevice}),
                           sums.phase({Phase::kDeviceWait}),
                           evidence.exposed.exchange_s,
                           evidence.exposed.waiting_s + evidence.exposed.before_graphs_s,
                           sums.phase({Phase::kOptimizerStep, Phase::kStepLrSchedulers}),
                           sums.phase({Phase::kFromDevice, Phase::kReduceMetrics}),
                           sums.phase({Phase::kCheckpoint}),
                           sums.phase({Phase::kCallbacks}),
                           sums.phase({Phase::kValidation}),
                           sums.phase({Phase::kOther}),
                           missing_end_s,
                           outside_s};
  static_assert(std::size(values) == 14);
  for (std::size_t i = 0; i < result.parts.size(); ++i) result.parts[i].seconds = values[i];
  std::vector<WaterfallPart> first = computing_parts(ideal_s, hardware_s);
  result.parts.insert(result.parts.begin(), first.begin(), first.end());
  for (WaterfallPart& part : result.parts) {
    if (result.wall_s > 0) part.share = part.seconds / result.wall_s;
  }
  result.no_core_s = no_core_s(evidence.contention);
  if (result.wall_s > 0) result.samples_per_s = result.samples / result.wall_s;
  if (hardware_s && *hardware_s > 0) result.hardware_samples_per_s = result.samples / *hardware_s;
  if (ideal_s > 0) result.ideal_samples_per_s = result.samples / ideal_s;
  if (result.ideal_samples_per_s > 0) result.efficiency = result.samples_per_s / result.ideal_samples_per_s;
  return result;
}

Json to_json(const Waterfall& waterfall) {
  Json parts = Json::array();
  for (const WaterfallPart& part : waterfall.parts) {
    parts.push_back(
        {{"name", part.name}, {"description", part.description}, {"seconds", part.seconds}, {"share", part.share}});
  }
  return {{"wall_s", waterfall.wall_s},
          {"samples", waterfall.samples},
          {"hardware_samples_per_s", or_null(waterfall.hardware_samples_per_s)},
          {"ideal_samples_per_s", waterfall.ideal_samples_per_s},
          {"samples_per_s", waterfall.samples_per_s},
          {"efficiency", waterfall.efficiency},
          {"parts", std::move(parts)},
          {"no_core_s", or_null(waterfall.no_core_s)}};
}

}  // namespace dtrain::analysis
