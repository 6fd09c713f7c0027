#include "dtrain/analysis/analysis.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

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

constexpr std::array<std::string_view, 5> kPartsOfComputing{"hardware", "products", "memory_bound", "launch_gaps",
                                                            "slower_kernels"};

// Returns the batches of a rank, mean over ranks.
double batches_of_rank(const Evidence& evidence) {
  double batches = 0;
  for (const RankProfile& rank : evidence.run.ranks) batches += static_cast<double>(rank.step_count());
  return batches / static_cast<double>(evidence.run.ranks.size());
}

struct PartsOfGpus {
  std::vector<WaterfallPart> parts;
  double exchange_s = 0;  // of CUDA graphs: in which only NCCL's kernels ran
};

// Returns the parts for computing on GPUs at the pace of the best rank, from the kernels' own times in observed
// batches. Outside of CUDA graphs the update is a part of its own, so its kernels are no part of these.
PartsOfGpus parts_of_kernels(double ideal_s, double optimizer_s, const Evidence& evidence) {
  const GpuWindow& window = evidence.gpu_window;
  const double scale = batches_of_rank(evidence) / static_cast<double>(window.batches);
  const bool graphs = evidence.exposed.graphs_s > 0;
  PartsOfGpus result;
  double rest_s = ideal_s;
  const auto take = [&](double seconds) {
    const double taken_s = std::clamp(seconds, 0.0, rest_s);
    rest_s -= taken_s;
    return taken_s;
  };
  const auto add = [&](const char* name, const char* description, double seconds) {
    result.parts.push_back({name, description, take(seconds)});
  };
  add("products", "kernels of matrix products, convolutions and attention, as observed batches show",
      scale * window.own_of(profile::WorkKind::kProducts));
  add("memory_bound",
      graphs ? "the GPU's other kernels while no product ran, those of the update too, as observed batches show"
             : "the GPU's other kernels while no product ran, without those of the update, as observed batches show",
      scale * window.own_of(profile::WorkKind::kMemoryBound) - (graphs ? 0 : optimizer_s));
  if (graphs) result.exchange_s = take(scale * window.own_of(profile::WorkKind::kExchange));
  if (const auto gaps_s = launch_gaps_of_batch_s(evidence)) {
    add("launch_gaps", "the GPU had no work because the next kernel was not launched yet, as observed batches show",
        *gaps_s * batches_of_rank(evidence));
  }
  add("compute", "train_batch and graph beyond that, at the best rank's median batch: copies, other waits of the GPU",
      rest_s);
  return result;
}

// The same from the limits of the cards, where these are known, from waiting for launches, where traces show it, and
// the rest.
std::vector<WaterfallPart> parts_of_gpus(double ideal_s, const std::optional<double>& hardware_s,
                                         const Evidence& evidence) {
  std::vector<WaterfallPart> parts;
  double rest_s = ideal_s;
  const auto add = [&](const char* name, const char* description, double seconds) {
    parts.push_back({name, description, seconds});
    rest_s -= seconds;
  };
  if (hardware_s) {
    const double all_s = *evidence.roofline.ideal_s;
    const double memory_s = all_s > 0 ? *hardware_s * *evidence.roofline.ideal_memory_s / all_s : 0;
    add("products", "forward and backward if each operator that the GPU's arithmetic limits ran at that limit",
        *hardware_s - memory_s);
    add("memory_bound", "forward and backward if each operator that the GPU's memory limits ran at that limit",
        memory_s);
  }
  if (const auto gaps_s = launch_gaps_of_batch_s(evidence)) {
    add("launch_gaps", "the GPU had no work because the next kernel was not launched yet, as traced batches show",
        std::min(rest_s, *gaps_s * batches_of_rank(evidence)));
  }
  const bool divided = !parts.empty();
  parts.push_back({hardware_s ? "slower_kernels" : "compute",
                   divided ? "train_batch and graph beyond that, at the best rank's median batch: kernels slower than "
                             "the GPU allows, other waits for the host, and in CUDA graphs the exchange and the update"
                           : "train_batch and graph on every rank as fast as the best rank's median batch",
                   rest_s});
  return parts;
}

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

std::optional<double> launch_gaps_of_batch_s(const Evidence& evidence) {
  const GpuWindow& window = evidence.gpu_window;
  if (window.batches == 0 || (evidence.exposed.graphs_s > 0 && window.graphs == 0)) return std::nullopt;
  double wall_s = 0, batches = 0;
  for (const RankProfile& rank : evidence.run.ranks) {
    const std::int64_t pauses_ns = rank.phase_ns(Phase::kValidation) + rank.phase_ns(Phase::kCheckpoint);
    wall_s += to_seconds(rank.wall_ns() - pauses_ns);
    batches += static_cast<double>(rank.step_count());
  }
  if (batches <= 0) return std::nullopt;
  const auto observed = static_cast<double>(window.batches);
  const double without_work_s = std::max(0.0, wall_s / batches - window.busy_s / observed);
  return std::min(window.launch_gaps_s / observed, without_work_s);
}

double Waterfall::part_s(const std::string& name) const {
  double seconds = 0;
  for (const WaterfallPart& part : parts) {
    const bool of_compute =
        name == "compute" && std::ranges::find(kPartsOfComputing, part.name) != kPartsOfComputing.end();
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
      {"exchange",
       "of the exposed communication (allreduce_wait), the exchange itself; in CUDA graphs all of it, where "
       "kernels are timed"},
      {"waiting", "the rest of it: waiting for the rank that comes last"},
      {"optimizer", "the update (optimizer_step, step_lr_schedulers)"},
      {"metrics", "fetching and reducing metrics (from_device, reduce_metrics)"},
      {"checkpoints", "writing checkpoints (checkpoint)"},
      {"callbacks", "the trial's callbacks"},
      {"validation", "evaluating (validation)"},
      {"other", "within batches, in none of the phases (other)"},
      {"ended_early", "from the end of a rank's loop to that of the last rank's"},
      {"unattributed", "of the loop, in no recorded batch"}};
  const double optimizer_s = sums.phase({Phase::kOptimizerStep, Phase::kStepLrSchedulers});
  PartsOfGpus kernels;
  if (evidence.kernels_are_timed) kernels = parts_of_kernels(ideal_s, optimizer_s, evidence);
  const double values[] = {compute_s - ideal_s,
                           sums.phase({Phase::kDataloaderNext}),
                           sums.phase({Phase::kToDevice}),
                           sums.phase({Phase::kDeviceWait}),
                           evidence.exposed.exchange_s + kernels.exchange_s,
                           evidence.exposed.waiting_s + evidence.exposed.before_graphs_s,
                           optimizer_s,
                           sums.phase({Phase::kFromDevice, Phase::kReduceMetrics}),
                           sums.phase({Phase::kCheckpoint}),
                           sums.phase({Phase::kCallbacks}),
                           sums.phase({Phase::kValidation}),
                           sums.phase({Phase::kOther}),
                           missing_end_s,
                           outside_s};
  static_assert(std::size(values) == 14);
  for (std::size_t i = 0; i < result.parts.size(); ++i) result.parts[i].seconds = values[i];
  const bool on_gpus = evidence.roofline.device == "cuda" || evidence.gpu_window.batches > 0;
  std::vector<WaterfallPart> first = evidence.kernels_are_timed ? std::move(kernels.parts)
                                     : on_gpus                  ? parts_of_gpus(ideal_s, hardware_s, evidence)
                                                                : computing_parts(ideal_s, hardware_s);
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
