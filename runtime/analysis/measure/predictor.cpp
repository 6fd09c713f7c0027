#include "measure/predictor.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/clock.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;

constexpr double kMostGain = 5;
constexpr std::size_t kAll = SIZE_MAX;  // ranks, which wait for each other

constexpr std::size_t kSampled = 2'000;      // rows
constexpr std::int64_t kSmallBytes = 1'024;  // and less: nothing but latency

using Lines = std::span<const CollectiveLine>;

Lines of_batch(const RankProfile& rank, std::int64_t batch) {
  const auto first = std::ranges::lower_bound(rank.collectives, batch, {}, &CollectiveLine::batch);
  const auto last = std::ranges::upper_bound(first, rank.collectives.end(), batch, {}, &CollectiveLine::batch);
  return {first, last};  // clang 14 has no subrange of libstdc++ 12
}

struct Bucket {
  std::vector<double> seconds, exposed_s;
  double bytes = 0;
  double ended = 0;  // sum of places in the order of ending
};

class Samples {
 public:
  void add_row(const Evidence& evidence, std::int64_t batch) {
    std::map<CollectiveKey, CollectiveLine> least;
    for (const RankProfile& rank : evidence.run.ranks) {
      for (const CollectiveLine& line : of_batch(rank, batch)) {
        if (line.bucket < 0) {
          if (line.bytes <= kSmallBytes) latency_.push_back(seconds(line));
          continue;
        }
        const auto [at, is_new] = least.try_emplace({line.operation, line.bucket}, line);
        if (is_new) continue;
        CollectiveLine& known = at->second;
        if (seconds(line) < seconds(known)) known.ended_ns = known.started_ns + (line.ended_ns - line.started_ns);
        known.exposed_ns = std::min(known.exposed_ns, line.exposed_ns);
        known.sequence = std::max(known.sequence, line.sequence);
      }
    }
    for (const auto& [key, line] : least) {
      Bucket& bucket = buckets_[key];
      bucket.seconds.push_back(seconds(line));
      bucket.exposed_s.push_back(static_cast<double>(line.exposed_ns) / 1e9);
      bucket.bytes = static_cast<double>(line.bytes);
      bucket.ended += static_cast<double>(line.sequence);
    }
    ++rows_;
  }

  std::optional<ExchangeCost> fit() const {
    ExchangeCost model;
    // The lower quartile is used because most small collectives include waiting for other ranks.
    std::vector<double> latencies = latency_;
    const double latency_s = quantile(latencies, 0.25);
    double last_ended = 0;
    for (const auto& [key, bucket] : buckets_) {
      if (2 * bucket.seconds.size() < rows_) continue;  // the bucket is of an abandoned plan
      const double transfer_s = median_low(bucket.seconds);
      const double exposed_s = std::min(transfer_s, median_low(bucket.exposed_s));
      model.transfer_s += transfer_s;
      model.mean_s += mean(bucket.seconds);
      model.latency_s += std::min(transfer_s, latency_s);
      model.exposed_s += exposed_s;
      model.bytes += bucket.bytes;
      model.gathers |= key.operation == Operation::kReduceScatter || key.operation == Operation::kAllGather;
      ++model.buckets;
      const double ended = bucket.ended / static_cast<double>(bucket.seconds.size());
      if (model.buckets > 1 && ended < last_ended) continue;
      last_ended = ended;
      model.last_s = transfer_s;
      model.last_exposed_share = transfer_s > 0 ? exposed_s / transfer_s : 0;
    }
    return model.buckets > 0 && model.transfer_s > 0 ? std::optional(model) : std::nullopt;
  }

 private:
  static double seconds(const CollectiveLine& line) {
    return static_cast<double>(std::max<std::int64_t>(0, line.ended_ns - line.started_ns)) / 1e9;
  }
  std::map<CollectiveKey, Bucket> buckets_;
  std::vector<double> latency_;
  std::size_t rows_ = 0;
};

constexpr std::size_t kMostDraws = 200'000;

struct Work {
  double own_s = 0;                // mean over rows and ranks
  double exchange_s = 0;           // the last rank's waiting, mean over rows
  std::vector<double> deviations;  // of a rank from the mean of its row, ascending
};

Work measure(const Rows& rows) {
  Work work;
  double steps = 0;
  const auto count = static_cast<double>(rows.ranks());
  const std::size_t every = rows.rows().size() * rows.ranks() / kMostDraws + 1;
  for (std::size_t i = 0; i < rows.rows().size(); ++i) {
    double sum = 0;
    std::int64_t least = INT64_MAX;
    for (std::size_t r = 0; r < rows.ranks(); ++r) {
      sum += to_seconds(training_of(rows.at(i, r)));
      least = std::min(least, wait_of(rows.at(i, r)));
    }
    const auto row_steps = static_cast<double>(rows.rows()[i].steps);
    steps += row_steps;
    work.own_s += sum / count;
    work.exchange_s += to_seconds(least);
    if (rows.rows()[i].window || i % every != 0) continue;
    for (std::size_t r = 0; r < rows.ranks(); ++r) {
      work.deviations.push_back((to_seconds(training_of(rows.at(i, r))) - sum / count) / row_steps);
    }
  }
  // Deviations from the mean of n ranks are smaller than from the true mean; the factor corrects that.
  for (double& deviation : work.deviations) deviation *= std::sqrt(count / (count - 1));
  work.own_s /= steps;
  work.exchange_s /= steps;
  std::sort(work.deviations.begin(), work.deviations.end());
  return work;
}

double largest_of(const std::vector<double>& ascending, int draws) {
  double expected = 0;
  const auto count = static_cast<double>(ascending.size());
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    const auto at = static_cast<double>(i);
    expected += ascending[i] * (std::pow((at + 1) / count, draws) - std::pow(at / count, draws));
  }
  return expected;
}

double bytes_on_the_link(int world) {
  return (world - 1.0) / world;
}

}  // namespace

Predictor::Predictor(const Evidence& evidence)
    : rows_(evidence.rows),
      as_is_{[](const StepLine& step) { return to_seconds(training_of(step)); }, [](double s) { return s; }} {
  const auto count = static_cast<double>(rows_.ranks());
  for (std::size_t i = 0; i < rows_.rows().size(); ++i) {
    double wall_s = 0;
    for (std::size_t r = 0; r < rows_.ranks(); ++r) {
      wall_s += to_seconds(minus(rows_.at(i, r).wall_ns, pauses_of(rows_.at(i, r))));
      samples_ += static_cast<double>(rows_.at(i, r).samples);
    }
    walls_.push_back(wall_s / count);
    all_s_ += walls_.back();
    steps_ += static_cast<double>(rows_.rows()[i].steps);
    has_windows_ |= rows_.rows()[i].window;
  }
  if (has_windows_) make_blocks();
}

Prediction Predictor::predict(Prediction prediction, const Changed& changed) const {
  const std::size_t slowest = changed.alone ? slowest_rank(changed) : kAll;
  const double windows_gain = changed.alone || !has_windows_ ? 1 : gain_of_windows(changed);
  std::vector<double> walls;
  double saved_s = 0;
  for (std::size_t i = 0; i < walls_.size(); ++i) {
    const double gained_s = (rows_.rows()[i].window ? windows_gain : 1) * saving_s(cells(i), changed, slowest);
    walls.push_back(std::max(0.0, walls_[i] - gained_s));
    saved_s += walls_[i] - walls.back();
  }
  return finish(std::move(prediction), saved_s, middle(walls));
}

Prediction Predictor::predict(Prediction prediction, double step_s) const {
  return finish(std::move(prediction), all_s_ - step_s * steps_, step_s);
}

Prediction Predictor::predict_aggregated(Prediction prediction, int k) const {
  double saved_s = 0;
  std::vector<double> walls;
  for (std::size_t i = 0; i < rows_.rows().size();) {
    std::vector<double> own(rows_.ranks(), 0);
    double wall_s = 0, now_s = 0, exchange_s = 0, update_s = 0;
    std::size_t in_group = 0;
    double steps = 0;
    for (; i < rows_.rows().size() && in_group < static_cast<std::size_t>(k); ++in_group, ++i) {
      wall_s += walls_[i];
      steps += static_cast<double>(rows_.rows()[i].steps);
      double most = 0, least_wait = least_wait_s(i), update = 0;
      for (std::size_t r = 0; r < rows_.ranks(); ++r) {
        const StepLine& step = rows_.at(i, r);
        own[r] += to_seconds(training_of(step));
        most = std::max(most, to_seconds(training_of(step)));
        update += to_seconds(plus(phase_of(step, Phase::kOptimizerStep), phase_of(step, Phase::kStepLrSchedulers)));
      }
      now_s += most + least_wait;
      exchange_s += least_wait;
      update_s += update / static_cast<double>(rows_.ranks());
      if (!rows_.rows()[i].window) continue;
      in_group = static_cast<std::size_t>(k) - 1;  // a window stands for many groups
    }
    const double part = 1.0 / k;
    const double then_s = *std::max_element(own.begin(), own.end()) - (1 - part) * update_s + part * exchange_s;
    const double wall = std::max(0.0, wall_s - (now_s - then_s));
    saved_s += wall_s - wall;
    walls.push_back(wall / steps);
  }
  return finish(std::move(prediction), saved_s, median_low(std::move(walls)));
}

double Predictor::least_wait_s(std::size_t row) const {
  std::int64_t least = INT64_MAX;
  for (std::size_t r = 0; r < rows_.ranks(); ++r) least = std::min(least, wait_of(rows_.at(row, r)));
  return to_seconds(least);
}

Predictor::Cells Predictor::cells(std::size_t row) const {
  Cells result;
  for (std::size_t r = 0; r < rows_.ranks(); ++r) result.ranks.push_back(&rows_.at(row, r));
  if (rows_.rows()[row].window) result.exchanges = static_cast<double>(rows_.rows()[row].steps);
  return result;
}

double Predictor::saving_s(const Cells& cells, const Changed& changed, std::size_t only) const {
  const auto length_s = [&](const Changed& change) {
    double most = 0, sum = 0;
    std::int64_t least_wait = INT64_MAX;
    for (const StepLine* step : cells.ranks) {
      const double own = change.own_s(*step);
      most = std::max(most, own);
      sum += own;
      least_wait = std::min(least_wait, wait_of(*step));
    }
    const double own_s = change.balanced ? sum / static_cast<double>(cells.ranks.size()) : most;
    return own_s + cells.exchanges * change.exchange_s(to_seconds(least_wait) / cells.exchanges);
  };
  if (only != kAll) return length_s(as_is_) - changed.own_s(*cells.ranks[only]);
  return length_s(as_is_) - length_s(changed);
}

// Sums steps in full by the hundred, as a window does.
void Predictor::make_blocks() {
  constexpr std::size_t kSteps = 100;
  for (std::size_t i = 0; i < rows_.rows().size() && !rows_.rows()[i].window; ++i) {
    if (i % kSteps == 0) blocks_.emplace_back(rows_.ranks());
    for (std::size_t r = 0; r < rows_.ranks(); ++r) {
      StepLine& sum = blocks_.back()[r];
      const StepLine& step = rows_.at(i, r);
      add_to(sum.wall_ns, step.wall_ns);
      for (std::size_t p = 0; p < sum.phases.size(); ++p) add_to(sum.phases[p], step.phases[p]);
    }
  }
  whole_rows_ = 0;
  while (whole_rows_ < rows_.rows().size() && !rows_.rows()[whole_rows_].window) ++whole_rows_;
}

// Returns the factor by which a change gains more in single steps than in sums of steps, measured on steps in full: in
// a window's sums, gains of alternating ranks cancel out.
double Predictor::gain_of_windows(const Changed& changed) const {
  double one_by_one_s = 0, put_together_s = 0;
  for (std::size_t i = 0; i < whole_rows_; ++i) one_by_one_s += saving_s(cells(i), changed, kAll);
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    Cells block;
    for (const StepLine& step : blocks_[b]) block.ranks.push_back(&step);
    block.exchanges = static_cast<double>(whole_rows_) / static_cast<double>(blocks_.size());
    put_together_s += saving_s(block, changed, kAll);
  }
  if (put_together_s <= 0 || one_by_one_s <= put_together_s) return 1;
  return std::min(kMostGain, one_by_one_s / put_together_s);
}

std::size_t Predictor::slowest_rank(const Changed& changed) const {
  std::vector<double> sums(rows_.ranks(), 0);
  for (std::size_t i = 0; i < rows_.rows().size(); ++i) {
    for (std::size_t r = 0; r < rows_.ranks(); ++r) sums[r] += changed.own_s(rows_.at(i, r));
  }
  return static_cast<std::size_t>(std::max_element(sums.begin(), sums.end()) - sums.begin());
}

// Returns the median over rows, each as one step.
double Predictor::middle(const std::vector<double>& walls) const {
  std::vector<double> values;
  for (std::size_t i = 0; i < walls.size(); ++i) {
    values.push_back(walls[i] / static_cast<double>(rows_.rows()[i].steps));
  }
  return median_low(std::move(values));
}

Prediction Predictor::finish(Prediction prediction, double saved_s, double p50_s) const {
  prediction.world_size = static_cast<int>(rows_.ranks());
  prediction.step_s = std::max(0.0, all_s_ - saved_s) / steps_;
  prediction.step_p50_s = p50_s;
  prediction.samples_per_s = prediction.step_s > 0 ? samples_ / (prediction.step_s * steps_) : 0;
  prediction.gain = prediction.step_s > 0 ? step_s() / prediction.step_s - 1 : 0;
  prediction.saved_s = saved_s;
  return prediction;
}

double ExchangeCost::exposed_if(double bandwidth, double latency, double bytes_factor) const {
  const double scale = bytes_factor / bandwidth;
  const double other_s = latency_s * latency + (transfer_s - latency_s) * scale;
  const double last_latency_s = buckets > 0 ? std::min(last_s, latency_s / buckets) : 0;
  const double last_other_s = last_latency_s * latency + (last_s - last_latency_s) * scale;
  return std::max(last_exposed_share * last_other_s, exposed_s + other_s - transfer_s);
}

std::optional<ExchangeCost> fit_exchange_cost(const Evidence& evidence) {
  const auto& rows = evidence.rows.rows();
  std::vector<std::int64_t> batches;
  for (const Row& row : rows) {
    if (row.exchanged && !row.window) batches.push_back(row.last_batch);
  }
  Samples samples;
  const std::size_t count = std::min(batches.size(), kSampled);
  for (std::size_t i = 0; i < count; ++i) samples.add_row(evidence, batches[i * batches.size() / count]);
  return samples.fit();
}

// Predicts more ranks, each with the batch of a rank now: weak scaling.
//
// A rank's own work stays the same. The slowest of n ranks counts: its excess over the mean is expected to be the
// largest of n draws from the measured deviations of ranks from the mean of their step. Transfers grow with the bytes
// that a rank sends and receives, 2(n-1)/n of all, and their latency with log2(n). The growth is exposed.

void predict_scaling(const Evidence& evidence, WhatIf& into) {
  const int world = static_cast<int>(evidence.rows.ranks());
  if (world < 2) {
    into.notes.emplace_back("more ranks: one rank exchanges nothing, so what an exchange costs here is not known");
    return;
  }
  const auto link = fit_exchange_cost(evidence);
  if (!link) {
    into.notes.emplace_back("more ranks: no exchange of buckets was recorded in full");
    return;
  }
  const Work work = measure(evidence.rows);
  const double samples_per_rank = into.samples_per_s * into.step_s / world;
  const double modelled_s = work.own_s + largest_of(work.deviations, world) + work.exchange_s;
  for (const int ranks : {world + 1, 2 * world, 4 * world, 8 * world}) {
    const double slower = bytes_on_the_link(ranks) / bytes_on_the_link(world);
    const double latency = std::log2(ranks) / std::log2(world);
    const double exposed_s = link->exposed_if(1 / slower, latency, 1);
    const double grown_s = std::max(0.0, exposed_s - link->exposed_s);
    const double then_s = work.own_s + largest_of(work.deviations, ranks) + work.exchange_s + grown_s;
    Prediction prediction{.name = fmt::format("ranks_{}", ranks),
                          .title = fmt::format("{} ranks", ranks),
                          .assumption = "each new rank is like one of these: its cores, its data, its link",
                          .mock = ""};
    prediction.world_size = ranks;
    prediction.step_s = into.step_s + then_s - modelled_s;
    prediction.step_p50_s = into.step_p50_s + then_s - modelled_s;
    if (prediction.step_s <= 0) continue;
    prediction.samples_per_s = ranks * samples_per_rank / prediction.step_s;
    prediction.gain = prediction.samples_per_s / into.samples_per_s - 1;
    prediction.efficiency = into.step_s / prediction.step_s;
    into.scaling.push_back(std::move(prediction));
  }
}

}  // namespace dtrain::analysis
