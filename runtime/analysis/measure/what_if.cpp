#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/analysis/analysis.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "measure/contention.h"
#include "measure/predictor.h"
#include "measure/roofline.h"
#include "measure/system_metrics.h"
#include "read/json_fields.h"
#include "read/text.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;

double own_s(const StepLine& step) {
  return to_seconds(training_of(step));
}

double without_loading_s(const StepLine& step) {
  return to_seconds(minus(training_of(step), loading_of(step)));
}

double update_s(const StepLine& step) {
  return to_seconds(phase_of(step, Phase::kOptimizerStep));
}

double unchanged(double exchange_s) {
  return exchange_s;
}

double nothing(double /*exchange_s*/) {
  return 0;
}

// Returns the seconds between two batches of the slowest rank's loader, from its workers' times for them; empty: not
// recorded.
std::optional<double> loader_period_s(const RunProfile& run) {
  std::optional<double> slowest;
  for (const RankProfile& rank : run.ranks) {
    std::vector<double> fetches;
    double workers = 1;
    for (const LoaderLine& line : rank.loader) {
      if (line.fetch_ns >= 0) fetches.push_back(to_seconds(line.fetch_ns));
      workers = std::max(workers, static_cast<double>(line.workers));
    }
    if (fetches.empty()) continue;
    slowest = std::max(slowest.value_or(0), mean(fetches) / workers);
  }
  return slowest;
}

// Returns the seconds of a step besides loading and training, of the rank with most of them.
double rest_s(const Rows& rows) {
  std::vector<double> sums(rows.ranks(), 0);
  for (std::size_t i = 0; i < rows.rows().size(); ++i) {
    for (std::size_t r = 0; r < rows.ranks(); ++r) {
      const StepLine& step = rows.at(i, r);
      sums[r] += to_seconds(plus(phase_of(step, Phase::kOther), phase_of(step, Phase::kCallbacks)));
    }
  }
  return *std::max_element(sums.begin(), sums.end()) / static_cast<double>(rows.steps());
}

std::optional<Prediction> predict_loader_alone(const Evidence& evidence, const Predictor& predictor, WhatIf& result) {
  Prediction prediction{.name = "loader_alone",
                        .title = "nothing but loading: the loader's limit",
                        .assumption = "batches are read one after the other, without training",
                        .mock = "train"};
  const auto period = loader_period_s(evidence.run);
  if (!period) {
    result.notes.emplace_back(
        "the loader's limit is not predicted: the loader did not record what a batch takes it; --mock train measures "
        "it");
    return std::nullopt;
  }
  return predictor.predict(std::move(prediction), *period + rest_s(evidence.rows));
}

// The cores of a rank, and the cores that its computing threads leave free.
struct RankCores {
  double all = 0;
  double free = 0;
};

// Returns the cores of the rank with the fewest free ones. Empty: they are not in the plan.
std::optional<RankCores> cores_of_ranks(const RunProfile& run) {
  std::optional<RankCores> least;
  for (const Json& rank : list_at(run.plan, "ranks")) {
    const Json& cpus = list_at(rank, "cpus");
    if (cpus.empty()) return std::nullopt;
    const auto all = static_cast<double>(cpus.size());
    const double free = std::max(0.0, all - static_cast<double>(integer(rank, "threads", 1)));
    if (!least || free < least->free) least = RankCores{all, free};
  }
  return least;
}

// Predicts more reading threads if the experiment sets their number. With auto there are already as many as help.
std::optional<Prediction> predict_workers(const Evidence& evidence, const Predictor& predictor) {
  constexpr double kWaits = 0.02, kHeadroom = 1.25, kMost = 32;
  if (!has_data_keys(evidence.run)) return std::nullopt;
  const auto given = value_at<std::int64_t>(object_at(evidence.run.experiment, "data"), "workers");
  const std::optional<LoaderUse> use = loader_use(evidence.run);
  const std::optional<double> period = loader_period_s(evidence.run);
  if (!given || !use || !period) return std::nullopt;
  if (use->waited_s < kWaits * use->steps_s) return std::nullopt;
  const double workers = std::max(1.0, static_cast<double>(*given));
  const double of_one_s = *period * workers;
  const double without_s = predictor.step_s() * (1 - use->waited_s / use->steps_s);
  const double more = std::clamp(std::ceil(kHeadroom * of_one_s / std::max(1e-6, without_s)), workers + 1, kMost);
  if (more <= workers) return std::nullopt;
  double period_s = of_one_s / more, taken_s = 0;  // taken: from the training, where no core is free
  const double on_core_s = of_one_s * use->cpu_share();
  std::string cores = "there are cores for that";
  if (const std::optional<RankCores> of_rank = cores_of_ranks(evidence.run)) {
    if (of_rank->free > 0) {
      period_s = std::max(period_s, on_core_s / of_rank->free);
      cores = fmt::format("{:.0f} of the rank's {:.0f} are free for it", of_rank->free, of_rank->all);
    } else {
      taken_s = on_core_s / of_rank->all;
      cores =
          fmt::format("the training computes on all {:.0f} of the rank, so that it gets slower by that", of_rank->all);
    }
  }
  Prediction prediction{.name = "loader_workers",
                        .title = fmt::format("{:.0f} loader workers instead of {}", more, *given),
                        .set = fmt::format("data.workers={:.0f}", more)};
  prediction.assumption =
      fmt::format("a batch takes workers {} together, as it did; they spend {} of it on a core, and {}",
                  seconds_text(of_one_s), format_percent(use->cpu_share()), cores);
  const auto own = [period_s, taken_s](const StepLine& step) {
    const double rest_s = without_loading_s(step);
    return rest_s + std::min(to_seconds(loading_of(step)), std::max(taken_s, period_s - rest_s));
  };
  return predictor.predict(std::move(prediction), {own, unchanged});
}

// Removes predictions of parts that a mock run leaves out: a faster exchange, or faster loading. The others still hold.
void leave_out_what_is_mocked(const RunProfile& run, WhatIf& result) {
  const Json* const mock = find_object(run.plan, "mock");
  if (!mock) return;
  const std::vector<std::string> words = split(text(*mock, "what"), ',');
  const auto mocked = [&](const char* word) { return std::find(words.begin(), words.end(), word) != words.end(); };
  const bool alone = mocked("comm") || mocked("train");
  std::erase_if(result.changes, [&](const Prediction& prediction) {
    const bool of_loading =
        prediction.name == "free_loader" || prediction.name == "loader_alone" || prediction.name == "loader_workers";
    return of_loading ? mocked("loader") : alone || prediction.name == "compute_alone";
  });
  if (alone) result.scaling.clear();
  result.notes.emplace_back("a mock run: of what it leaves out nothing is predicted");
}

// Predicts ranks that wait neither for each other nor for each other's caches, if these transfer the updates.
void predict_alone(const Evidence& evidence, const RunProfile& tried, const Predictor& predictor, WhatIf& result) {
  const auto unshared = unshared_update_share(evidence.run, tried);
  const double saved = unshared ? 1 - *unshared : 0;
  std::string assumption = "ranks do not wait for each other at all";
  if (saved > 0) {
    assumption += fmt::format(
        "; in memory of its own a rank's part of an update takes {:.0f}% of its time (replicated updates in the run's "
        "first steps)",
        100 * *unshared);
  } else if (updates_one_copy(evidence.run) && !unshared) {
    result.notes.emplace_back(
        "ranks update one copy of the parameters, and what of that time is the exchange between their caches is not "
        "known, so a batch without communication is shorter than predicted; with sharded_optimizer: auto a run finds "
        "out");
  }
  const auto own = [saved](const StepLine& step) { return own_s(step) - saved * update_s(step); };
  const auto compute = [saved](const StepLine& step) { return without_loading_s(step) - saved * update_s(step); };
  result.changes.push_back(predictor.predict(
      {.name = "free_network", .title = "gradients are exchanged at once", .assumption = assumption, .mock = "comm"},
      {own, nothing, true}));
  result.changes.push_back(predictor.predict({.name = "compute_alone",
                                              .title = "neither loading nor communication",
                                              .assumption = assumption,
                                              .mock = "loader,comm"},
                                             {compute, nothing, true}));
}

void predict_link(const Evidence& evidence, const Predictor& predictor, WhatIf& result) {
  const auto link = fit_exchange_cost(evidence);
  if (!link) {
    result.notes.emplace_back("another link is not predicted: no exchange of buckets was recorded in full");
    return;
  }
  const auto change = [&](const char* name, const char* title, const std::string& assumption, double exposed_s) {
    // The saving is of the buckets only: barriers and small all-reduces carry hardly any bytes.
    const double saved_s = std::max(0.0, link->exposed_s - exposed_s);
    const Changed changed{own_s, [saved_s](double exchange_s) { return std::max(0.0, exchange_s - saved_s); }};
    result.changes.push_back(
        predictor.predict({.name = name, .title = title, .assumption = assumption, .mock = ""}, changed));
  };
  const std::string measured = fmt::format("{} of {} in all: {} an exchange, the training waits {} of it (medians)",
                                           count_text(link->buckets, "bucket"), format_bytes(link->bytes),
                                           seconds_text(link->transfer_s), seconds_text(link->exposed_s));
  change("twice_the_link", "a link twice as fast", measured + "; the latency stays", link->exposed_if(2, 1, 1));
  if (ranks_have_gpus(evidence.run)) return;  // gradients on GPUs are not compressed
  change("half_the_bytes", "half the bytes (gradient_compression: fp16 or bf16)",
         measured + "; converting costs nothing", link->exposed_if(1, 1, 0.5));
}

// Predictions for keys of the experiment that change how operators compute.

// Returns a key of the experiment's optimizations; empty: not set.
std::string optimization(const RunProfile& run, const std::string& key) {
  return text(object_at(run.experiment, "optimizations"), key);
}

double flops_s(const Roofline& roofline, bool of_convolutions) {
  double sum = 0;
  for (const OperatorLimit& operation : roofline.operators) {
    if (operation.flops > 0 && (!of_convolutions || !operation.format.empty())) sum += operation.seconds;
  }
  return sum;
}

// Returns the change if each sample takes so much less of the rank's own work.
Changed less_work(double of_sample_s) {
  const auto own_s = [of_sample_s](const StepLine& step) {
    const double own_s = to_seconds(training_of(step));
    const double most_s = to_seconds(compute_of(step));
    return own_s - std::min(most_s, of_sample_s * static_cast<double>(step.samples));
  };
  return {own_s, [](double exchange_s) { return exchange_s; }};
}

void predict_computing(const Evidence& evidence, const Predictor& predictor, WhatIf& into) {
  const Roofline& roofline = evidence.roofline;
  const std::string precision = optimization(evidence.run, "mixed_precision");
  const bool off = precision.empty() || precision == "none" || precision == "O0";
  if (const auto saved_s = off ? bf16_saving_s(roofline) : std::nullopt; saved_s && *saved_s > 0) {
    Prediction prediction{
        .name = "bf16", .title = "products and convolutions in bfloat16", .set = "optimizations.mixed_precision=bf16"};
    prediction.assumption = fmt::format(
        "operators with FLOPs take {} of the {} that operators take in a batch of {} samples; each gains what the "
        "machine's limits of the two types differ by, less the time of casting",
        seconds_text(flops_s(roofline, false)), seconds_text(roofline.seconds()), count_text(roofline.samples));
    into.changes.push_back(predictor.predict(std::move(prediction), less_work(*saved_s)));
  }
  const std::string format = optimization(evidence.run, "memory_format");
  const bool tried = format == "channels_last" || format == "auto";  // auto has measured both
  if (const auto saved_s = tried ? std::nullopt : channels_last_saving_s(roofline); saved_s && *saved_s > 0) {
    Prediction prediction{.name = "channels_last",
                          .title = "images in channels_last",
                          .set = "optimizations.memory_format=channels_last"};
    prediction.assumption = fmt::format(
        "convolutions take {} of the {} that operators take in a batch of {} samples; those of 16 channels and more "
        "reach the machine's rate for channels_last, everything else takes what it took",
        seconds_text(flops_s(roofline, true)), seconds_text(roofline.seconds()), count_text(roofline.samples));
    into.changes.push_back(predictor.predict(std::move(prediction), less_work(*saved_s)));
  }
}

// Returns true if a step of this run may become a CUDA graph with optimizations.cuda_graphs: true: it was not tried,
// and nothing is set with which steps run without graphs.
bool may_capture(const RunProfile& run) {
  const Json& optimizations = object_at(run.experiment, "optimizations");
  const auto is_set = [&](const char* key) {
    const auto found = optimizations.find(key);
    return found != optimizations.end() && !found->is_null() && *found != Json(false);
  };
  return !run.plan.contains("cuda_graphs") && !is_set("gradient_compression") && !is_set("local_sgd") &&
         value_at<std::int64_t>(optimizations, "aggregation_frequency").value_or(1) == 1;
}

// Predicts steps that are launched at once, from the time in which the GPU waited for launches.
std::optional<Prediction> predict_graphs(const Evidence& evidence, const Predictor& predictor) {
  const auto gaps_s = launch_gaps_of_batch_s(evidence);
  if (!gaps_s || *gaps_s <= 0 || !may_capture(evidence.run)) return std::nullopt;
  const GpuWindow& window = evidence.gpu_window;
  Prediction prediction{
      .name = "cuda_graphs", .title = "steps as CUDA graphs", .set = "optimizations.cuda_graphs=true"};
  prediction.assumption = fmt::format(
      "in {} observed batches the GPU waited for {} of {} kernels and copies until they were launched, {} a batch; a "
      "graph "
      "launches all of them at once, and they take what they took",
      count_text(window.batches), count_text(window.late_launches), count_text(window.works), seconds_text(*gaps_s));
  const auto own = [gap_s = *gaps_s](const StepLine& step) {
    return own_s(step) - std::min(to_seconds(compute_of(step)), gap_s);
  };
  return predictor.predict(std::move(prediction), {own, unchanged});
}

}  // namespace

double slowest_rank_step_s(const RunProfile& run) {
  double slowest = 0;
  for (const RankProfile& rank : run.ranks) {
    std::vector<double> walls;
    double wall_s = 0, batches = 0;  // since the last exchange
    for (const StepLine& step : rank.steps) {
      wall_s += to_seconds(minus(step.wall_ns, pauses_of(step)));
      ++batches;
      if (!step.exchanged && &step != &rank.steps.back()) continue;
      walls.push_back(wall_s / batches);
      wall_s = batches = 0;
    }
    slowest = std::max(slowest, median_low(std::move(walls)));
  }
  return slowest;
}

std::optional<double> foreign_load_percent(const RunProfile& run) {
  std::optional<double> most;
  for (const Contention& rank : find_contention(run)) {
    if (rank.foreign_percent) most = std::max(most.value_or(0), *rank.foreign_percent);
  }
  return most;
}

WhatIf predict(const Evidence& evidence, const RunProfile& tried) {
  WhatIf result;
  if (evidence.rows.rows().empty()) {
    result.notes.emplace_back("no batch was recorded by all ranks: nothing to predict from");
    return result;
  }
  const Predictor predictor(evidence);
  if (predictor.step_s() <= 0) {
    result.notes.emplace_back("the recorded batches took no time: nothing to predict from");
    return result;
  }
  result.step_s = predictor.step_s();
  result.step_p50_s = predictor.step_p50_s();
  result.samples_per_s = predictor.samples_per_s();
  result.changes.push_back(predictor.predict({.name = "free_loader",
                                              .title = "batches are there at once",
                                              .assumption = "everything else takes what it took",
                                              .mock = "loader"},
                                             {without_loading_s, unchanged}));
  if (auto workers = predict_workers(evidence, predictor)) result.changes.push_back(std::move(*workers));
  predict_computing(evidence, predictor, result);
  if (auto graphs_of_steps = predict_graphs(evidence, predictor)) result.changes.push_back(std::move(*graphs_of_steps));
  std::optional<Prediction> loading = predict_loader_alone(evidence, predictor, result);
  const bool graphs = evidence.exposed.graphs_s > 0;
  if (graphs && evidence.rows.ranks() > 1) {
    result.notes.push_back(
        fmt::format("what depends on the exchange is not predicted: CUDA graphs are {} of the loop, and what the "
                    "exchange exposes in them is not known; a run with optimizations.cuda_graphs: false shows it",
                    format_percent(evidence.loop_s > 0 ? evidence.exposed.graphs_s / evidence.loop_s : 1)));
  } else if (evidence.rows.ranks() > 1) {
    predict_alone(evidence, tried, predictor, result);
    result.changes.push_back(predictor.predict({.name = "balanced",
                                                .title = "the ranks' work is the same in every batch",
                                                .assumption = "the sum of their work stays",
                                                .mock = ""},
                                               {own_s, unchanged, false, true}));
    predict_link(evidence, predictor, result);
    for (const int k : {2, 4}) {
      result.changes.push_back(predictor.predict_aggregated(
          {.name = fmt::format("aggregate_{}", k),
           .title = fmt::format("exchange {}x more seldom (aggregation_frequency)", k),
           .assumption =
               fmt::format("the effective batch is {} times as large; whether it learns as well is not predicted", k),
           .mock = ""},
          k));
    }
  }
  std::ranges::stable_sort(result.changes, [](const Prediction& a, const Prediction& b) { return a.gain > b.gain; });
  if (loading) result.changes.push_back(std::move(*loading));  // no change to make, but a limit
  if (!graphs) predict_scaling(evidence, result);
  leave_out_what_is_mocked(evidence.run, result);
  return result;
}

}  // namespace dtrain::analysis
