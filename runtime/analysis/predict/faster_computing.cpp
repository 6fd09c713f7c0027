// What keys of the experiment would change in how operators compute.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/clock.h"
#include "measure/computing_savings.h"
#include "predict/predict.h"
#include "read/json_fields.h"
#include "text/numbers.h"

namespace dtrain::analysis {
namespace {

// A key of the experiment's optimizations; empty: not set.
std::string optimization(const RunProfile& run, const std::string& key) {
  const auto found = run.experiment.find("optimizations");
  return found != run.experiment.end() && found->is_object() ? text(*found, key) : std::string();
}

double flops_s(const Roofline& roofline, bool of_convolutions) {
  double sum = 0;
  for (const OperatorLimit& one : roofline.operators) {
    if (one.flops > 0 && (!of_convolutions || !one.format.empty())) sum += one.seconds;
  }
  return sum;
}

// Each sample takes so much less of the rank's own work.
Changed less_work(double of_sample_s) {
  const auto own_s = [of_sample_s](const StepLine& step) {
    const double own_s = to_seconds(training_of(step));
    const double most_s = to_seconds(compute_of(step));
    return own_s - std::min(most_s, of_sample_s * static_cast<double>(step.samples));
  };
  return {own_s, [](double exchange_s) { return exchange_s; }};
}

}  // namespace

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

}  // namespace dtrain::analysis
