#include "dtrain/analysis/run_history.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "dtrain/base/json.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr const char* kLearningRateName = "learning rate";
constexpr const char* kGradientNormName = "gradient norm";
constexpr const char* kThroughputName = "throughput";

CurvePoint one_value(std::int64_t batch, double seconds, double value) {
  const bool finite = std::isfinite(value);
  const double kept = finite ? value : kNan;
  return {.batch = batch,
          .seconds = seconds,
          .mean = kept,
          .low = kept,
          .high = kept,
          .last = value,
          .low_batch = batch,
          .high_batch = batch,
          .finite = finite ? 1 : 0,
          .non_finite = finite ? 0 : 1,
          .first_non_finite = finite ? 0 : batch};
}

// Adds the point that directly follows `into`.
void merge(CurvePoint& into, const CurvePoint& next) {
  if (into.non_finite == 0) into.first_non_finite = next.first_non_finite;
  if (into.finite == 0 || next.low < into.low) into.low = next.low, into.low_batch = next.low_batch;
  if (into.finite == 0 || next.high > into.high) into.high = next.high, into.high_batch = next.high_batch;
  const std::int64_t finite = into.finite + next.finite;
  if (into.finite == 0) {
    into.mean = next.mean;
  } else if (next.finite > 0) {
    into.mean += (next.mean - into.mean) * (static_cast<double>(next.finite) / static_cast<double>(finite));
  }
  into.finite = finite;
  into.non_finite += next.non_finite;
  into.batch = next.batch;
  into.seconds = next.seconds;
  into.last = next.last;
}

// Returns the attempts since the last that began at batch 0: a training that begins anew has metrics of its own.
std::vector<AttemptAccount> since_it_began(std::span<const AttemptAccount> attempts) {
  std::size_t first = 0;
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    if (attempts[i].from_batch == 0) first = i;
  }
  return {attempts.begin() + static_cast<std::ptrdiff_t>(first), attempts.end()};
}

}  // namespace

std::string word_of(CurveKind kind) {
  constexpr const char* kWords[] = {"training", "validation", "learning_rate", "gradient_norm", "throughput"};
  return kWords[static_cast<std::size_t>(kind)];
}

CurvePoint together(std::span<const CurvePoint> points) {
  CurvePoint all = points.front();
  for (const CurvePoint& point : points.subspan(1)) merge(all, point);
  return all;
}

CurveValue Curve::last() const {
  return {points.back().last, points.back().batch};
}

std::optional<CurveValue> Curve::least() const {
  std::optional<CurveValue> least;
  for (const CurvePoint& point : points) {
    if (point.finite > 0 && (!least || point.low < least->value)) least = {point.low, point.low_batch};
  }
  return least;
}

std::optional<CurveValue> Curve::greatest() const {
  std::optional<CurveValue> greatest;
  for (const CurvePoint& point : points) {
    if (point.finite > 0 && (!greatest || point.high > greatest->value)) greatest = {point.high, point.high_batch};
  }
  return greatest;
}

std::int64_t Curve::non_finite() const {
  std::int64_t count = 0;
  for (const CurvePoint& point : points) count += point.non_finite;
  return count;
}

std::optional<std::int64_t> Curve::first_non_finite() const {
  for (const CurvePoint& point : points) {
    if (point.non_finite > 0) return point.first_non_finite;
  }
  return std::nullopt;
}

const Curve* RunCurves::find(CurveKind kind, const std::string& name) const {
  for (const Curve& curve : curves) {
    if (curve.kind == kind && curve.name == name) return &curve;
  }
  return nullptr;
}

CurveReader::TrainingClock::TrainingClock(std::span<const AttemptAccount> attempts)
    : attempts_(since_it_began(attempts)) {}

// Moves on to the next attempt. If no event tells when the current one ended, its last line or event does.
void CurveReader::TrainingClock::advance() {
  const AttemptAccount& ended = attempts_[at_];
  const double end = ended.ended_s.value_or(std::max(ended.seen_s, latest_s_));
  if (ended.started_s > 0) offset_ += std::max(0.0, end - ended.started_s);
  offset_ = seconds_ = std::max(offset_, seconds_);
  latest_s_ = 0;
  const AttemptAccount& next = attempts_[++at_];
  restarts_.push_back({next.attempt, next.from_batch, offset_});
}

// A line belongs to the last attempt that began before its batch, whatever its time: when an attempt begins, later
// lines of earlier attempts are cut off.
double CurveReader::TrainingClock::seconds(std::int64_t batch, double wall_s) {
  std::size_t attempt = at_;
  for (std::size_t i = at_ + 1; i < attempts_.size(); ++i) {
    if (attempts_[i].from_batch < batch) attempt = i;
  }
  while (at_ < attempt) advance();
  if (first_s_ == 0) first_s_ = wall_s;
  latest_s_ = std::max(latest_s_, wall_s);
  const double started = attempts_.empty() ? 0 : attempts_[at_].started_s;
  const double from = started > 0 ? started : first_s_;
  if (wall_s > 0) seconds_ = std::max(seconds_, offset_ + wall_s - from);  // a clock may be set back
  return seconds_;
}

std::vector<Restart> CurveReader::TrainingClock::restarts() const {
  TrainingClock all = *this;
  while (all.at_ + 1 < all.attempts_.size()) all.advance();
  return all.restarts_;
}

CurveReader::CurveReader(std::span<const AttemptAccount> attempts, std::size_t most)
    : most_(std::max<std::size_t>(most, 2)), clock_(attempts) {}

void CurveReader::add(const Json& line) {
  const std::string kind = text(line, "kind");
  const auto metrics = line.find("metrics");
  if ((kind != "training" && kind != "validation") || metrics == line.end() || !metrics->is_object()) return;
  MetricsLine read{.is_training = kind == "training",
                   .batch = integer(line, "batch"),
                   .samples = integer(line, "samples"),
                   .time_s = seconds_of_utc(text(line, "time"))};
  for (const auto& [key, value] :
       {std::pair("learning_rate", &read.learning_rate), std::pair("gradient_norm", &read.gradient_norm)}) {
    if (const auto found = line.find(key); found != line.end()) *value = number_of(*found);
  }
  for (const auto& [name, value] : metrics->items()) {
    if (const auto number = number_of(value)) read.metrics.emplace_back(name, *number);
  }
  add(read);
}

void CurveReader::add(const MetricsLine& line) {
  const std::int64_t batch = std::max<std::int64_t>(0, line.batch);
  if (batch < last_batch_ || (line.is_training && batch == last_training_)) take_back(batch);
  const double seconds = clock_.seconds(batch, line.time_s);
  seconds_ = std::max(seconds_, seconds);
  const CurveKind kind = line.is_training ? CurveKind::kTraining : CurveKind::kValidation;
  for (const auto& [name, value] : line.metrics) add_value(kind, name, batch, seconds, value);
  if (line.is_training) {
    add_training(line, seconds);
  } else if (batch == last_training_ && since_) {
    since_ = seconds;  // a validation directly after a training line is not part of the next one
  }
  last_batch_ = batch;
}

void CurveReader::add_training(const MetricsLine& line, double seconds) {
  const std::int64_t batch = std::max<std::int64_t>(0, line.batch);
  if (line.learning_rate) add_value(CurveKind::kLearningRate, kLearningRateName, batch, seconds, *line.learning_rate);
  if (line.gradient_norm) add_value(CurveKind::kGradientNorm, kGradientNormName, batch, seconds, *line.gradient_norm);
  // The first line of an attempt also has samples from before its start, and the time to start.
  if (clock_.attempt() != attempt_) since_.reset();
  attempt_ = clock_.attempt();
  if (since_ && seconds > *since_ && line.samples > 0) {
    const auto samples = static_cast<double>(line.samples);
    add_value(CurveKind::kThroughput, kThroughputName, batch, seconds, samples / (seconds - *since_));
    samples_ += samples;
    samples_s_ += seconds - *since_;
  }
  since_ = seconds;
  last_training_ = batch;
}

void CurveReader::add_value(CurveKind kind, const std::string& name, std::int64_t batch, double seconds, double value) {
  Growing& curve = growing_[{kind, name}];
  std::vector<CurvePoint>& points = curve.points;
  const CurvePoint added = one_value(batch, seconds, value);
  if (!points.empty() && points.back().finite + points.back().non_finite < curve.stride) {
    return merge(points.back(), added);
  }
  if (points.size() >= most_) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < points.size(); i += 2) {
      points[kept++] = together(std::span(points).subspan(i, std::min<std::size_t>(2, points.size() - i)));
    }
    points.resize(kept);
    curve.stride *= 2;
    return add_value(kind, name, batch, seconds, value);
  }
  points.push_back(added);
}

void CurveReader::take_back(std::int64_t batch) {
  for (auto it = growing_.begin(); it != growing_.end();) {
    std::vector<CurvePoint>& points = it->second.points;
    while (!points.empty() && points.back().batch >= batch) points.pop_back();
    it = points.empty() ? growing_.erase(it) : std::next(it);
  }
  last_training_ = -1;
  since_.reset();
}

RunCurves CurveReader::curves() const {
  RunCurves result;
  for (const auto& [key, curve] : growing_) {
    result.curves.push_back({key.first, key.second, curve.points});
    result.batches = std::max(result.batches, curve.points.back().batch);
  }
  if (samples_s_ > 0) result.samples_per_s = samples_ / samples_s_;
  result.restarts = clock_.restarts();
  result.seconds = seconds_;
  if (!result.restarts.empty()) result.seconds = std::max(seconds_, result.restarts.back().seconds);
  return result;
}

RunCurves curves_of(const RunProfile& run, std::size_t most) {
  CurveReader reader(history_of(run.events).attempts, most);
  for (const Json& line : run.metrics) reader.add(line);
  return reader.curves();
}

}  // namespace dtrain::analysis
