#include "step/loss_scaling_report.h"

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"

namespace dtrain::train {

LossScalingReport::LossScalingReport(const RunServices& run, StepsInFlight& in_flight, const LossScaler& scaler,
                                     bool each_rank)
    : run_(run), in_flight_(in_flight), scaler_(scaler), reads_(each_rank || run.is_first_rank()) {
  begin_anew();
}

void LossScalingReport::begin_anew() {
  const at::Tensor values = scaler_.values().cpu();
  scale_ = values[0].item<double>();
  skipped_ = values[2].item<double>();
  is_new_ = true;
}

void LossScalingReport::after_update(std::int64_t batch) {
  if (!reads_) return;
  in_flight_.read(scaler_.values(), [this, batch](std::span<const double> values) { see(values, batch); });
}

void LossScalingReport::see(std::span<const double> values, std::int64_t batch) {
  const double before = scale_;
  const bool skipped = values[1] != 0;
  scale_ = values[0];
  skipped_ = values[2];
  if (scale_ == before && !skipped) return;
  is_new_ = true;
  run_.write_event("loss_scale", {{"batch", batch},
                                  {"scale", scale_},
                                  {"skipped", skipped},
                                  {"skipped_updates", static_cast<std::int64_t>(skipped_)}});
  if (skipped_ == 1 && skipped) {
    run_.log->info(
        "float16 gradients were not finite in batch {}: its update is skipped, and the scale of the loss falls from {} "
        "to {}; this is usual, above all in the first batches",
        batch, before, scale_);
  }
  if (skipped && scale_ < 1 && before >= 1) {
    run_.log->warn(
        "the scale of the loss has fallen below 1 in batch {}: gradients are not finite however small the scale is, so "
        "the model diverges, or its activations exceed what float16 holds (65504); lower the learning rate, clip "
        "gradients, look for NaN or Inf in the data, or use mixed_precision: bf16",
        batch);
  }
}

void LossScalingReport::write() {
  if (!run_.is_first_rank() || !is_new_) return;
  is_new_ = false;
  const auto skipped = static_cast<std::int64_t>(skipped_);
  run_.update_plan(
      "loss_scaling",
      {{"skipped_updates", skipped},
       {"scale", scale_},
       {"text", fmt::format("fp16: {} skipped, the scale of the loss is {}", count_of(skipped, "update"), scale_)}});
}

}  // namespace dtrain::train
