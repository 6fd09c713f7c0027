#include "worker/chunked_loss.h"

#include <utility>

#include <ATen/ATen.h>

#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"

namespace dtrain::worker {

ChunkedLoss::ChunkedLoss(const config::ModelJob& job, const OutputChoice& output, FileModel& model,
                         rank::RankSession& session)
    : loss_(job.loss.loss), session_(session) {
  if (!std::holds_alternative<config::CrossEntropy>(loss_)) return;
  std::string why = why_not(job);
  if (why.empty()) {
    auto taken = model.take_last_layer(output, kLeastClassesInChunks);
    why = taken.why_not;
    if (why.empty()) layer_ = std::move(taken.layer);
  }
  if (!why.empty()) report(false, "the loss gets the scores of the model, because " + why);
}

std::string ChunkedLoss::why_not(const config::ModelJob& job) const {
  if (session_.experiment().optimizations.operators == config::Operators::kDefault) {
    return "optimizations.operators is default";
  }
  if (!std::get<config::CrossEntropy>(loss_).class_weights.empty()) return "loss.class_weights are set";
  if (!job.loss.auxiliary.empty()) return "loss.auxiliary has further outputs";
  return "";
}

LossValues ChunkedLoss::evaluate(LossInput& input, bool needs_scores) {
  const auto& loss = std::get<config::CrossEntropy>(loss_);
  const at::Tensor hidden = input.output;
  const bool in_chunks = !needs_scores && fits_chunks(loss, input) &&
                         bytes_of_scores(hidden, layer_) >= least_bytes_in_chunks(hidden, layer_);
  if (at::GradMode::is_enabled() && !std::exchange(is_reported_, true)) report_first(hidden, in_chunks);
  if (!in_chunks) {
    input.output = scores(hidden);
    return evaluate_loss(loss_, input);
  }
  LossValues values = evaluate_in_chunks(loss, input, layer_);
  std::vector<std::int64_t> shape = hidden.sizes().vec();
  shape.back() = layer_.classes();
  input.output = at::empty(shape, at::TensorOptions().device(at::kMeta));
  return values;
}

at::Tensor ChunkedLoss::scores(const at::Tensor& hidden) const {
  return at::linear(hidden, layer_.weight, layer_.bias.defined() ? std::optional(layer_.bias) : std::nullopt);
}

void ChunkedLoss::report_first(const at::Tensor& hidden, bool in_chunks) {
  const double bytes = bytes_of_scores(hidden, layer_);
  const std::string scores = "the " + std::to_string(layer_.classes()) + " scores of each target, " +
                             format_bytes(bytes) + " in the first batch of rank 0, ";
  const std::string text =
      in_chunks ? scores + "are computed in chunks from '" + layer_.name + "', and never lie in memory at once"
                : scores + "are computed as a whole: chunks are for scores of " +
                      format_bytes(least_bytes_in_chunks(hidden, layer_)) +
                      " or more, not in float16, with one class for each row";
  if (session_.world().rank == 0 && in_chunks) session_.log()->info("{}", text);
  report(in_chunks, text, {{"layer", layer_.name}, {"classes", layer_.classes()}, {"scores_bytes", bytes}});
}

void ChunkedLoss::report(bool used, const std::string& text, Json more) {
  if (session_.world().rank != 0) return;
  more["used"] = used;
  more["text"] = text;
  session_.update_plan("linear_cross_entropy", more);
}

}  // namespace dtrain::worker
