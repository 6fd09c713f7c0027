#include "loop/progress.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"

namespace dtrain::train {
namespace {

constexpr Nanoseconds kInterval = std::chrono::milliseconds(500);
constexpr double kKept = 0.95;  // factor of the earlier batches' weight after each batch

// records_per_epoch is meant for sources that do not know their length.
void warn_of_unused_length(const rank::RankSession& session, const BatchSource& data, const Lengths& lengths) {
  const auto& records = session.experiment().records_per_epoch;
  if (!data.batches_per_epoch() || !records || session.world().rank != 0) return;
  if (std::max<std::int64_t>(1, *records / lengths.global_batch) == *lengths.batches_per_epoch) return;
  session.log()->warn(
      "records_per_epoch ({}) has no effect: the training data has a length of its own, {} batches of {} samples; "
      "leave "
      "the key out",
      *records, *lengths.batches_per_epoch, lengths.global_batch);
}

// Writes the lengths to the plan, from which others see how far the run is.
void write_to_plan(rank::RankSession& session, const Lengths& lengths) {
  Json planned = Json::object();
  if (lengths.total_batches) planned["batches"] = *lengths.total_batches;
  if (lengths.batches_per_epoch) planned["batches_per_epoch"] = *lengths.batches_per_epoch;
  session.update_plan("length", planned);
}

}  // namespace

Lengths find_lengths(rank::RankSession& session, const BatchSource& data) {
  const config::Experiment& experiment = session.experiment();
  Lengths lengths;
  lengths.global_batch = session.batch_per_rank() * session.logical().size;
  const Json mine = {{"batches", data.batches_per_epoch().value_or(-1)}};
  for (const std::string& text : session.control().gather("train/epoch-length", mine.dump())) {
    const std::int64_t theirs = Json::parse(text)["batches"].get<std::int64_t>();
    if (theirs >= 0) lengths.batches_per_epoch = std::max(lengths.batches_per_epoch.value_or(0), theirs);
  }
  if (!lengths.batches_per_epoch && experiment.records_per_epoch) {
    lengths.batches_per_epoch = std::max<std::int64_t>(1, *experiment.records_per_epoch / lengths.global_batch);
  }
  if (lengths.batches_per_epoch == 0) {
    throw DataError("the training set is smaller than one batch for every rank (global batch: " +
                        std::to_string(lengths.global_batch) + " samples)",
                    "lower hyperparameters.global_batch_size, or give more data");
  }
  warn_of_unused_length(session, data, lengths);
  const auto length_in_batches = [&](const config::Length& length, const char* key) {
    if (length.unit == config::LengthUnit::kEpochs && !lengths.batches_per_epoch) {
      throw ConfigError(std::string(key) + " is in epochs, but the training data has no known length",
                        "give records_per_epoch, or use batches or records");
    }
    return config::in_batches(length, lengths.global_batch, lengths.batches_per_epoch.value_or(1));
  };
  lengths.validation_period = length_in_batches(experiment.min_validation_period, "min_validation_period");
  lengths.checkpoint_period = length_in_batches(experiment.min_checkpoint_period, "min_checkpoint_period");
  const config::Length& length = experiment.searcher.max_length;
  lengths.source_decides = data.has_next_epoch().has_value();
  if (length.unit == config::LengthUnit::kEpochs) lengths.epochs = length.count;
  const bool is_unknown = length.unit == config::LengthUnit::kEpochs && length.count >= config::kEpochsOfScripts;
  if (is_unknown && lengths.source_decides) return lengths;
  if (length.unit != config::LengthUnit::kEpochs || lengths.batches_per_epoch) {
    lengths.total_batches = length_in_batches(length, "searcher.max_length");
  }
  write_to_plan(session, lengths);
  return lengths;
}

void end_after_epochs(rank::RankSession& session, const BatchSource& data, const Position& position, Lengths& lengths) {
  if (lengths.source_decides || lengths.epochs == 0 || !lengths.total_batches) return;
  std::int64_t left = 0;
  const std::string mine = std::to_string(data.batches_left().value_or(0));
  for (const std::string& theirs : session.control().gather("train/batches-left", mine)) {
    left = std::max<std::int64_t>(left, std::stoll(theirs));
  }
  const std::int64_t epochs_left = std::max<std::int64_t>(0, lengths.epochs - position.epoch - 1);
  const std::int64_t total = position.batches + left + epochs_left * *lengths.batches_per_epoch;
  if (total == *lengths.total_batches) return;
  lengths.total_batches = total;
  write_to_plan(session, lengths);
}

void ProgressMeter::start() {
  throughput_.start(position_.batches);
  shown_ = session_.clock().monotonic();
}

void ProgressMeter::add_loss(const Metrics& metrics) {
  const auto loss = metrics.find("loss");
  if (loss != metrics.end()) add_loss(loss->second.value());
}

void ProgressMeter::add_loss(double loss) {
  loss_ = loss;
  if (!std::isfinite(loss)) return;
  loss_sum_ = kKept * loss_sum_ + loss;
  loss_weight_ = kKept * loss_weight_ + 1;
  loss_ = loss_sum_ / loss_weight_;
}

void ProgressMeter::update(const std::function<void()>& take_losses) {
  if (session_.world().rank != 0) return;
  const Nanoseconds now = session_.clock().monotonic();
  const std::int64_t total = lengths_.total_batches.value_or(0);
  const bool last = total > 0 && position_.batches == total;
  if (now - shown_ < kInterval && !last && shown_any_) return;
  take_losses();
  rank::Progress progress;
  progress.batch = position_.batches;
  progress.total_batches = total;
  progress.epoch = position_.epoch;
  progress.epoch_batch = position_.epoch_batches;
  progress.batches_per_epoch = lengths_.batches_per_epoch.value_or(0);
  progress.loss = loss_;
  progress.samples_per_second = throughput_.take(position_.batches) * static_cast<double>(lengths_.global_batch);
  session_.report_progress(progress);
  shown_ = now;
  shown_any_ = true;
}

}  // namespace dtrain::train
