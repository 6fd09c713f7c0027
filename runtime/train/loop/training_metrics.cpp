#include "loop/training_metrics.h"

#include <span>

#include "dtrain/base/json_number.h"
#include "dtrain/config/experiment.h"

namespace dtrain::train {

using profile::Phase;
using profile::PhaseScope;

TrainingMetrics::TrainingMetrics(run::RankSession& session, TrainingStep& step, const Position& position,
                                 ProgressMeter& progress)
    : session_(session),
      step_(step),
      position_(position),
      progress_(progress),
      sums_("training", session.control(), session.communicator()) {}

namespace {

// Reads the values now: later batches may change a tensor (a buffer of the model, a parameter) before it is added up.
void read_values(Metrics& metrics) {
  require_single_values(metrics, "training");
  for (auto& [name, value] : metrics) value = value.as_number();
}

}  // namespace

void TrainingMetrics::keep(Metrics metrics, std::int64_t samples) {
  if (step_.parameters().memory().on_host()) {
    read_values(metrics);
    unread_.emplace_back(std::move(metrics), samples);
    return;
  }
  sums_.add(metrics, samples);
  const auto loss = metrics.find("loss");
  if (session_.world().rank != 0 || loss == metrics.end()) return;
  if (!loss->second.is_on_device()) return progress_.add_loss(loss->second.value());
  step_.in_flight().read(loss->second.tensor(),
                         [this](std::span<const double> value) { progress_.add_loss(value.front()); });
}

void TrainingMetrics::keep_logged(Metrics metrics, std::int64_t samples) {
  if (metrics.empty()) return;
  if (step_.parameters().memory().on_host()) {
    read_values(metrics);
    unread_logs_.emplace_back(std::move(metrics), samples);
  } else {
    sums_.add_logged(metrics, samples);
  }
}

void TrainingMetrics::show_losses() {
  for (; shown_ < unread_.size(); ++shown_) progress_.add_loss(unread_[shown_].first);
}

void TrainingMetrics::add_unread() {
  if (session_.world().rank == 0) show_losses();
  shown_ = 0;
  for (const auto& [metrics, samples] : unread_) sums_.add(metrics, samples);
  for (const auto& [metrics, samples] : unread_logs_) sums_.add_logged(metrics, samples);
  unread_.clear();
  unread_logs_.clear();
}

void TrainingMetrics::begin() {
  step_.check_members();
  step_.write_reports();
  const PhaseScope phase(session_.recorder(), Phase::kFromDevice);
  add_unread();
  due_.push_back({position_.batches, position_.epoch, step_.optimizer().steps(), step_.optimizer().last_learning_rate(),
                  sums_.take()});
  Due& due = due_.back();
  if (!due.sums.device_sums.defined()) return;
  step_.in_flight().read(due.sums.device_sums,
                         [&due](std::span<const double> values) { due.sums.add_device_sums(values); });
}

void TrainingMetrics::finish() {
  // Values that were requested after a batch arrive with the next batch.
  const std::int64_t lag = step_.in_flight().lag() == 0 ? 0 : step_.in_flight().lag() + 1;
  while (!due_.empty() && due_.front().batch + lag <= position_.batches) write_oldest();
}

void TrainingMetrics::finish_all() {
  if (due_.empty()) return;
  step_.in_flight().extend_batch();
  step_.in_flight().finish_all();
  while (!due_.empty()) write_oldest();
}

void TrainingMetrics::write_oldest() {
  const PhaseScope phase(session_.recorder(), Phase::kReduceMetrics);
  Due due = std::move(due_.front());
  due_.pop_front();
  const bool together = session_.experiment().optimizations.average_training_metrics && !session_.mock().alone();
  const ReducedMetrics reduced = together ? sums_.reduce(std::move(due.sums)) : MetricReducer::local_means(due.sums);
  if (session_.world().rank != 0 || reduced.samples == 0) return;
  Json line = {{"kind", "training"},
               {"batch", due.batch},
               {"epoch", due.epoch},
               {"samples", reduced.samples},
               {"optimizer_steps", due.optimizer_steps},
               {"learning_rate", number_or_text(due.learning_rate)}};
  if (const auto norm = step_.gradient_norms().of(due.batch)) line["gradient_norm"] = number_or_text(*norm);
  line["metrics"] = numbers_or_texts(reduced.means);
  session_.write_metrics(line);
}

void TrainingMetrics::prepare_visit() {
  step_.in_flight().finish_all();
  finish_all();
  add_unread();
}

}  // namespace dtrain::train
