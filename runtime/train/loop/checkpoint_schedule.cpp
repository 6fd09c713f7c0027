#include "loop/checkpoint_schedule.h"

#include <algorithm>
#include <map>
#include <utility>

#include "checkpoint/restore.h"
#include "dtrain/base/error.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/run_memory.h"
#include "model/flat_parameters.h"
#include "model/model_tensors.h"

namespace dtrain::train {
namespace {

// Bounds of the automatic period: a crash loses at most about so much, where the experiment names no period.
constexpr std::chrono::duration<double> kShortestPeriod{60}, kLongestPeriod{600};
constexpr double kShareOfTime = 0.005;
constexpr std::chrono::seconds kRetryAfter{10};
constexpr std::chrono::seconds kLongDelay{1};

std::map<std::string, std::string> tied_names(const torch::nn::Module& model) {
  std::map<std::string, std::string> tied;
  for (const auto& parameter : distinct_parameters(model)) {
    for (std::size_t i = 1; i < parameter.names.size(); ++i) tied[parameter.names[i]] = parameter.names.front();
  }
  return tied;
}

}  // namespace

CheckpointSchedule::CheckpointSchedule(rank::RankSession& session, TrainingStep& step, const torch::nn::Module& model,
                                       const std::string& trial, const BatchSource& data, const Lengths& lengths,
                                       const Position& position, std::function<void()> before_each,
                                       std::function<void(StateVisitor&)> visit)
    : session_(session),
      step_(step),
      position_(position),
      period_(lengths.checkpoint_period),
      before_each_(std::move(before_each)),
      visit_(std::move(visit)) {
  if (session.mock().any()) return;
  facts_ = facts_for_resume(session, data, trial);
  taken_.emplace(session, step,
                 Checkpoints::Options{.names = {tied_names(model), left_out_of_weights(model)}, .run = facts_}, visit_);
  // States in memory are read by as many ranks as have written them, and have not been tried with virtual ranks.
  if (!session.logical().virtuals) {
    in_memory_.emplace(session, step, taken_->hosts(), TensorNames{tied_names(model), left_out_of_weights(model)},
                       facts_, visit_);
  }
  step.before_update([this] {
    if (in_memory_) in_memory_->begin_update();
    if (!is_due(position_.batches + 1) || step_.saver_busy()) return;
    finish_generation();
    taken_->prepare();
  });
}

bool CheckpointSchedule::resume() {
  if (!taken_) throw ConfigError("a mock run cannot go on from a checkpoint", "leave one of both out");
  const OpenCheckpoint checkpoint = session_.memory().begins_with ? OpenCheckpoint(session_, taken_->hosts())
                                                                  : OpenCheckpoint(session_, session_.resume_from());
  StateReader reader(checkpoint.folder(), session_.world().rank, session_.world().size, step_.state_is_shared());
  require_same_virtual_ranks(reader, facts_, session_.resume_from());
  reader.restore(visit_);
  restored();
  tell_of_resume(session_, reader, facts_, position_.batches, position_.epoch);
  const Json metric_before = reader.about().at("run").value("metric", facts_["metric"]);
  return metric_before == facts_["metric"];
}

void CheckpointSchedule::begin_from(const std::filesystem::path& path,
                                    const std::function<void(bool same_trial)>& before) {
  const OpenCheckpoint checkpoint(session_, path);
  StateReader reader(checkpoint.folder(), session_.world().rank, session_.world().size, step_.state_is_shared());
  if (session_.predictions().empty()) require_same_virtual_ranks(reader, facts_, path);
  before(is_of_same_trial(reader, facts_));
  reader.restore(visit_);
  restored();
  tell_of_beginning(session_, path, reader, facts_, position_.batches, position_.epoch);
}

void CheckpointSchedule::restored() {
  session_.control().barrier("train/resumed");  // no rank writes shared memory that another rank still restores
  is_restored_ = true;
  last_batch_ = position_.batches;
  taken_->resumed_at(position_.batches);
}

bool CheckpointSchedule::saver_busy() {
  return taken_ && taken_->saver_busy();
}

bool CheckpointSchedule::generation_busy() {
  return in_memory_ && in_memory_->busy();
}

bool CheckpointSchedule::wants_generation() const {
  return in_memory_ && in_memory_->wanted();
}

void CheckpointSchedule::publish_own() {
  if (in_memory_) in_memory_->publish({position_.batches, position_.epoch});
}

void CheckpointSchedule::take_generation_if_due() {
  if (!in_memory_ || step_.generation_busy()) return;
  if (position_.batches - last_generation_ < step_.announcement_rounds()) return;
  in_memory_->settle();
  if (!step_.generation_wanted() || taken_->awaits_update()) return;
  const profile::PhaseScope phase(session_.recorder(), profile::Phase::kCheckpoint);
  in_memory_->take({position_.batches, position_.epoch});
  last_generation_ = position_.batches;
}

void CheckpointSchedule::finish_generation() {
  if (in_memory_ && in_memory_->awaits_update()) in_memory_->finish_copy();
}

std::optional<std::int64_t> CheckpointSchedule::save_as_survivor() {
  return in_memory_ ? in_memory_->save_as_survivor() : std::nullopt;
}

bool CheckpointSchedule::wants_one(bool asked) const {
  if (!taken_) return false;
  if (asked) return true;
  if (session_.world().rank != 0) return false;
  const Nanoseconds passed = session_.clock().monotonic() - taken_->last_time();
  if (taken_->spoiled()) return true;
  if (taken_->failed()) return passed >= kRetryAfter;
  return period_ == 0 && passed >= automatic_period(taken_->cost_s()) &&
         session_.experiment().checkpoint_policy != config::CheckpointPolicy::kNone;
}

std::chrono::duration<double> CheckpointSchedule::automatic_period(double cost_s) {
  return std::clamp(std::chrono::duration<double>(cost_s / kShareOfTime), kShortestPeriod, kLongestPeriod);
}

bool CheckpointSchedule::is_due(std::int64_t batch) const {
  // A wish from before the last checkpoint may still arrive; it does not count.
  const bool wished = step_.checkpoint_wanted() && batch - last_batch_ >= step_.announcement_rounds();
  return wished || (period_ > 0 && batch - last_batch_ >= period_);
}

void CheckpointSchedule::after_validation(const Validation::Result& validated) {
  using config::CheckpointPolicy;
  const CheckpointPolicy policy = session_.experiment().checkpoint_policy;
  const bool keep = policy == CheckpointPolicy::kAll || (policy == CheckpointPolicy::kBest && validated.among_best);
  if (keep) take("validation", validated.metric, /*may_wait=*/true);
}

void CheckpointSchedule::take_for_validation() {
  take("validation", std::nullopt, /*may_wait=*/true, /*last=*/false, /*awaits_validation=*/true);
}

void CheckpointSchedule::note_validation(const std::filesystem::path& checkpoint, std::int64_t batch,
                                         std::optional<double> metric) {
  const std::string& name = session_.experiment().searcher.metric;
  try {
    checkpoints::note_validation(checkpoint, name, metric);
  } catch (const Error& error) {
    session_.log()->warn("the result of its validation could not be written into {}: {}", checkpoint.string(),
                         describe(error));
  }
  Json event = {{"step", batch}, {"path", checkpoint.string()}};
  if (metric) event.update({{"metric", name}, {"metric_value", number_or_text(*metric)}});
  session_.write_event("checkpoint_validated", event);
}

bool CheckpointSchedule::make_ready() {
  if (!taken_ || is_ready_ || std::exchange(is_restored_, false)) return false;
  is_ready_ = true;
  const profile::PhaseScope phase(session_.recorder(), profile::Phase::kCheckpoint);
  taken_->make_ready();
  return true;
}

void CheckpointSchedule::take_if_due(std::optional<double> metric) {
  if (!taken_ || !is_due(position_.batches)) return;
  step_.saver_busy() ? delay() : take("period", metric, /*may_wait=*/false);
}

void CheckpointSchedule::delay() {
  if (!delayed_since_) delayed_since_ = session_.clock().monotonic();
  const bool long_ago = session_.clock().monotonic() - *delayed_since_ > kLongDelay;
  if (!long_ago || std::exchange(told_of_delay_, true) || session_.world().rank != 0) return;
  const std::string cause = "the checkpoint of batch " + std::to_string(last_batch_) + " is still being written to " +
                            session_.checkpoint_folder().string();
  session_.log()->warn("a checkpoint is due at batch {} and waits: {}", position_.batches, cause);
  session_.write_event("checkpoint_delayed", {{"step", position_.batches}, {"cause", cause}});
}

void CheckpointSchedule::take(const char* reason, std::optional<double> metric, bool may_wait, bool last,
                              bool awaits_validation) {
  if (!taken_) return;
  before_each_();
  finish_generation();
  const profile::PhaseScope phase(session_.recorder(), profile::Phase::kCheckpoint);
  taken_->save({position_.batches, position_.epoch, reason, metric, awaits_validation}, may_wait, last);
  last_batch_ = position_.batches;
  delayed_since_.reset();
  told_of_delay_ = false;
}

void CheckpointSchedule::end_copies_by_updates() {
  finish_generation();
  if (in_memory_) in_memory_->begin_update();
  step_.before_update({});
}

void CheckpointSchedule::take_last(const char* reason, std::optional<double> metric) {
  take(reason, metric, /*may_wait=*/true, /*last=*/true);
}

bool CheckpointSchedule::make_durable() {
  return taken_ && taken_->make_durable();
}

}  // namespace dtrain::train
