#include "step/stability.h"

#include <cmath>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"

namespace dtrain::train {
namespace {

constexpr auto kNonFiniteRemedy =
    "lower the learning rate, clip gradients, or look for NaN or Inf in the data; with on_non_finite: warn the run "
    "continues";

// Returns a number whose sum over ranks shows if all ranks had the same value.
std::int64_t non_finite_code(double value) {
  return std::isnan(value) ? 1 : value > 0 ? 1'000'000 : 1'000'000'000'000;
}

std::string non_finite_value(std::int64_t codes, std::int64_t ranks) {
  for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    if (codes == ranks * non_finite_code(value)) return non_finite_text(value);
  }
  return "nan or infinite";
}

}  // namespace

void NonFinite::see_loss(double loss, std::int64_t batch, std::optional<int> logical_rank) {
  if (std::isfinite(loss)) return;
  if (stop_) {
    const std::string where = logical_rank ? fmt::format(" on logical rank {}", *logical_rank) : "";
    throw Error(fmt::format("the loss is {} in batch {}{}", non_finite_text(loss), batch, where), kNonFiniteRemedy);
  }
  const int rank = logical_rank.value_or(run_.world.rank);
  Words& words = losses_[batch];
  // Several losses of a rank count once; with virtual ranks, those of each logical rank do.
  if (!logical_rank) words = {};
  if (std::exchange(last_loss_, {batch, rank}) == std::pair(batch, rank) && logical_rank) return;
  words = {words[0] + 1, words[1] + rank + 1, words[2] + non_finite_code(loss)};
}

void NonFinite::see_norm(double norm, std::int64_t batch) {
  if (std::isfinite(norm)) return;
  const std::string text = fmt::format("the gradients' norm is {} in batch {}", non_finite_text(norm), batch);
  if (stop_) throw Error(text, kNonFiniteRemedy);
  norms_[batch] = text;
}

void NonFinite::see_weights(const std::string& parameter, std::int64_t batch) {
  const std::string what = fmt::format("parameter '{}' holds nan after batch {}", parameter, batch);
  if (stop_) throw Error(what, kNonFiniteRemedy);
  count(batch, what);
}

NonFinite::Words NonFinite::take_words(std::int64_t batch) {
  const auto found = losses_.find(batch);
  const Words words = found == losses_.end() ? Words{} : found->second;
  losses_.erase(losses_.begin(), losses_.upper_bound(batch));
  return words;
}

void NonFinite::add_round(std::span<const std::int64_t> sums, std::int64_t batch) {
  const auto norm = norms_.find(batch);
  if (sums[0] > 0) {
    const std::string where = sums[0] == 1 ? fmt::format("rank {}", sums[1] - 1) : fmt::format("{} ranks", sums[0]);
    count(batch, fmt::format("the loss is {} in batch {} on {}", non_finite_value(sums[2], sums[0]), batch, where));
  } else if (norm != norms_.end()) {
    count(batch, norm->second);
  }
  norms_.erase(norms_.begin(), norms_.upper_bound(batch));
}

void NonFinite::visit(StateVisitor& visitor) {
  visitor.number("batches", batches_);
  visitor.number("first_batch", first_batch_);
  visitor.text("first", first_);
  // The values of the last batches, which the next announcements will carry.
  std::vector<std::pair<std::int64_t, Words>> losses(losses_.begin(), losses_.end());
  std::vector<std::pair<std::int64_t, std::string>> norms(norms_.begin(), norms_.end());
  std::int64_t loss_count = static_cast<std::int64_t>(losses.size());
  std::int64_t norm_count = static_cast<std::int64_t>(norms.size());
  visitor.number("losses", loss_count);
  visitor.number("norms", norm_count);
  losses.resize(static_cast<std::size_t>(loss_count));
  norms.resize(static_cast<std::size_t>(norm_count));
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const std::string name = "loss_" + std::to_string(i);
    visitor.number(name + "_batch", losses[i].first);
    for (std::size_t w = 0; w < kWords; ++w) visitor.number(name + "_word_" + std::to_string(w), losses[i].second[w]);
  }
  for (std::size_t i = 0; i < norms.size(); ++i) {
    visitor.number("norm_" + std::to_string(i) + "_batch", norms[i].first);
    visitor.text("norm_" + std::to_string(i), norms[i].second);
  }
  losses_ = {losses.begin(), losses.end()};
  norms_ = {norms.begin(), norms.end()};
}

void NonFinite::forget() {
  losses_.clear();
  norms_.clear();
  batches_ = first_batch_ = 0;
  first_.clear();
}

void NonFinite::count(std::int64_t batch, const std::string& what) {
  if (batches_++ > 0) return;
  first_ = what;
  first_batch_ = batch;
  if (!run_.is_first_rank()) return;
  run_.log->warn("{} (on_non_finite: stop would end the run)", what);
  run_.write_event("non_finite", {{"batch", batch}, {"text", what}});
}

void NonFinite::write() {
  if (!run_.is_first_rank() || batches_ == written_) return;
  written_ = batches_;
  const std::string text =
      first_ + (batches_ > 1 ? fmt::format("; {} batches had such a loss or gradient norm", batches_) : "");
  run_.update_plan("non_finite", {{"batches", batches_}, {"first_batch", first_batch_}, {"text", text}});
}

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
