// Predicts more ranks, each with the batch of a rank now: weak scaling.
//
// A rank's own work stays the same. The slowest of n ranks counts: its excess over the mean is expected to be the
// largest of n draws from the measured deviations of ranks from the mean of their step. Transfers grow with the bytes
// that a rank sends and receives, 2(n-1)/n of all, and their latency with log2(n). The growth is exposed.
#include <algorithm>
#include <cmath>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/clock.h"
#include "predict/exchange_cost.h"
#include "predict/predictor.h"

namespace dtrain::analysis {
namespace {

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
