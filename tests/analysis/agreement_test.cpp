// One value for one name: every output of how much communication was exposed, and what it consists of, is the same for
// the same run; and the numbers a finding rests on make up what it costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/diff.h"
#include "dtrain/analysis/live.h"
#include "dtrain/analysis/report.h"
#include "dtrain/base/text.h"
#include "read/text.h"
#include "synthetic.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;
using test::SyntheticRun;
using test::SyntheticStep;
using testing::HasSubstr;

double waterfall_part_s(const Analysis& analysis, const std::string& name) {
  for (const WaterfallPart& one : analysis.waterfall.parts) {
    if (one.name == name) return one.seconds;
  }
  throw std::runtime_error("no part " + name);
}

double summary_phase_s(const RunSummary& summary, const std::string& name) {
  for (const PhaseSummary& one : summary.phases) {
    if (one.name == name) return one.seconds;
  }
  throw std::runtime_error("no phase " + name);
}

std::string with_share(double seconds, double share) {
  return fmt::format("{} ({})", seconds_text(seconds), format_percent(share));
}

// Every tenth exchange takes 40 times as long, so that mean and median are far apart; rank 1 is later than the others
// now and then.
SyntheticRun uneven_run(int ranks) {
  SyntheticRun plan;
  plan.ranks = ranks;
  plan.noise = 0;
  plan.change = [ranks](int rank, std::int64_t batch, SyntheticStep& step) {
    phase(step, Phase::kOptimizerStep) = 3 * kMs;
    if (ranks == 1) step.exchange_ns = 0;
    if (ranks > 1 && batch % 10 == 3) step.exchange_ns = 20 * kMs;
    if (rank == 1 && batch % 4 == 1) phase(step, Phase::kBackward) += 2 * kMs;
  };
  return plan;
}

void expect_texts_agree(const Synthetic& run) {
  const RunSummary& s = run.analysis.summary;
  const std::string exposed =
      fmt::format("xposed communication {} ({} of the loop): the exchange {}, waiting for the last rank {}",
                  seconds_text(s.exposed_s), format_percent(s.exposed_share),
                  with_share(s.exchange_s, s.exchange_share), with_share(s.waiting_s, s.waiting_share));
  EXPECT_THAT(render_summary(s, {.width = 400}), HasSubstr("e" + exposed));
  const std::string html = render_report(run.profile, run.analysis);
  EXPECT_THAT(html, HasSubstr("E" + exposed));
  EXPECT_THAT(html, HasSubstr(fmt::format("{} exchange, {} waiting for the last rank", format_percent(s.exchange_share),
                                          format_percent(s.waiting_share))));
  const std::string json = to_json(run.analysis)["waterfall"].dump();
  EXPECT_THAT(html, HasSubstr(json.substr(json.find("\"name\":\"exchange\"") + 1, 20)));
  const std::string text = render_analysis(run.analysis, {.width = 200});
  for (const char* name : {"exchange", "waiting"}) {
    const bool exchange = std::string(name) == "exchange";
    EXPECT_THAT(text, HasSubstr(fmt::format("  {:<24}{:>7}{:>12}", name,
                                            format_percent(exchange ? s.exchange_share : s.waiting_share),
                                            seconds_text(exchange ? s.exchange_s : s.waiting_s))));
  }
}

class AgreementOfRanks : public testing::TestWithParam<int> {};

TEST_P(AgreementOfRanks, ExposedCommunicationAndItsTwoPartsAreTheSameEverywhere) {
  const int ranks = GetParam();
  const Synthetic run(uneven_run(ranks));
  const Analysis& analysis = run.analysis;
  const RunSummary& s = analysis.summary;
  double waits = 0;
  for (const double wait_s : run.truth.wait_s) waits += wait_s;
  EXPECT_NEAR(s.exposed_s, waits / ranks, 1e-9);
  EXPECT_NEAR(s.exposed_s, s.exchange_s + s.waiting_s, 1e-12);
  EXPECT_NEAR(s.exposed_s, summary_phase_s(s, "allreduce_wait"), 1e-12);
  EXPECT_NEAR(s.exposed_share, s.exposed_s / analysis.waterfall.wall_s, 1e-12);
  EXPECT_NEAR(s.exchange_s, waterfall_part_s(analysis, "exchange"), 1e-12);
  EXPECT_NEAR(s.waiting_s, waterfall_part_s(analysis, "waiting"), 1e-12);
  double by_rank = 0;
  for (const RankSummary& rank : s.ranks) by_rank += rank.exposed_s / ranks;
  EXPECT_NEAR(by_rank, s.exposed_s, 1e-12);

  const Json json = to_json(analysis);
  EXPECT_EQ(json["summary"]["exposed_s"], s.exposed_s);
  EXPECT_EQ(json["summary"]["exchange_s"], s.exchange_s);
  EXPECT_EQ(json["summary"]["waiting_s"], s.waiting_s);
  EXPECT_EQ(json["stragglers"]["waiting_s"], s.waiting_s);
  if (ranks == 1) return;
  EXPECT_NEAR(s.exchange_s, 180 * 0.0005 + 20 * 0.020, 1e-6);
  EXPECT_GT(s.waiting_s, 0);
  const Finding* const exchange = run.finding("exchange");
  const Finding* const stalls = run.finding("stalls");
  ASSERT_NE(exchange, nullptr);
  const double stalled_s =
      exchange->evidence.find("of the stalls") != std::string::npos && stalls != nullptr ? stalls->seconds : 0;
  EXPECT_NEAR(exchange->seconds + stalled_s, s.exchange_s, 1e-9);
  EXPECT_NEAR(exchange->share, exchange->seconds / analysis.waterfall.wall_s, 1e-12);
  EXPECT_THAT(exchange->evidence, HasSubstr("the exposed communication is " + seconds_text(s.exposed_s)));
  expect_texts_agree(run);
}

INSTANTIATE_TEST_SUITE_P(Some, AgreementOfRanks, testing::Values(1, 2, 3), testing::PrintToStringParamName());

TEST(Agreement, OfFoldedBatchesToo) {
  SyntheticRun plan = uneven_run(3);
  plan.steps = 2'500;
  plan.detail_steps = 300;
  const Synthetic run(plan);
  const RunSummary& s = run.analysis.summary;
  EXPECT_NEAR(s.exposed_s, s.exchange_s + s.waiting_s, 1e-9);
  EXPECT_NEAR(s.exchange_s, waterfall_part_s(run.analysis, "exchange"), 1e-9);
  EXPECT_NEAR(s.waiting_s, waterfall_part_s(run.analysis, "waiting"), 1e-9);
  EXPECT_EQ(run.analysis.stragglers.waiting_s, s.waiting_s);
  expect_texts_agree(run);
}

class RunClock final : public Clock {
 public:
  Nanoseconds monotonic() const override { return Nanoseconds(0); }
  Nanoseconds wall() const override { return Nanoseconds(0); }
};

// Batches alike, and shorter in all than what top looks back on: then a batch of diff and the shares of top are those
// of the whole run.
TEST(Agreement, DiffAndTopFollowTheSameQuantities) {
  for (const int ranks : {2, 3}) {
    SyntheticRun plan;
    plan.ranks = ranks;
    plan.noise = 0;
    plan.change = [](int rank, std::int64_t, SyntheticStep& step) {
      if (rank == 1) phase(step, Phase::kBackward) += 2 * kMs;
    };
    const Synthetic run(plan);
    const RunSummary& s = run.analysis.summary;
    const Json diff = to_json(diff_runs(run.profile, run.profile, {}));
    EXPECT_NEAR(diff.at("exposed_communication").at("a_s").get<double>() * 200, s.exposed_s, 1e-6);
    const RunClock clock;
    LiveRun live(run.folder.path(), clock);
    live.poll();
    const Json view = to_json(live.view());
    double exposed = 0, exchange = 0, waiting = 0;
    for (std::size_t r = 0; r < s.ranks.size(); ++r) {
      const Json& recent = view["ranks"][r]["recent"];
      EXPECT_EQ(recent["steps"], 200);
      const double in_steps = s.ranks[r].in_steps_s / ranks;
      exposed += recent["exposed"].get<double>() * in_steps;
      exchange += recent["shares"]["exchange"].get<double>() * in_steps;
      waiting += recent["shares"]["waiting"].get<double>() * in_steps;
    }
    EXPECT_NEAR(exposed, s.exposed_s, 1e-6);
    EXPECT_NEAR(exchange, s.exchange_s, 1e-6);
    EXPECT_NEAR(waiting, s.waiting_s, 1e-6);
  }
}

TEST(Agreement, ComputingIsTrainBatchWithoutTheOptimizerEverywhere) {
  const Synthetic run(uneven_run(2));
  const RunSummary& s = run.analysis.summary;
  const double computing = summary_phase_s(s, "train_batch"), optimizer = summary_phase_s(s, "optimizer_step");
  EXPECT_NEAR(optimizer, 200 * 0.003, 1e-9);
  EXPECT_NEAR((s.ranks[0].compute_s + s.ranks[1].compute_s) / 2, computing, 1e-9);
  EXPECT_NEAR((s.ranks[0].optimizer_s + s.ranks[1].optimizer_s) / 2, optimizer, 1e-9);
  EXPECT_NEAR(waterfall_part_s(run.analysis, "compute") + waterfall_part_s(run.analysis, "slower_compute"), computing,
              1e-9);
  EXPECT_NEAR(waterfall_part_s(run.analysis, "optimizer"), optimizer, 1e-9);
}

TEST(Agreement, WhatToLookAtDoesNotCallTheUpdateComputing) {
  SyntheticRun plan;
  plan.ranks = 1;
  plan.noise = 0;
  plan.initialization_ns = kMs;
  plan.change = [](int, std::int64_t, SyntheticStep& step) {
    phase(step, Phase::kOptimizerStep) = 20 * kMs;
    phase(step, Phase::kOther) = 0;
  };
  const Synthetic run(plan);
  const double share = summary_phase_s(run.analysis.summary, "train_batch") / run.analysis.waterfall.wall_s;
  EXPECT_LT(share, 0.4);
  EXPECT_THAT(run.analysis.summary.look_at,
              HasSubstr(format_percent(share) + " of the loop is the model's own computing"));
}

// "1.77 ms", "2 min 05 s" are not needed here.
double parsed_seconds(const std::string& number, const std::string& unit) {
  const double factor = unit == "s" ? 1 : unit == "ms" ? 1e-3 : unit == "us" ? 1e-6 : 1e-9;
  return std::stod(number) * factor;
}

// The product of the two numbers that `pattern` finds in a finding's evidence: a count, and seconds with their unit.
double product_in(const Finding& finding, const std::string& pattern, bool seconds_first) {
  std::smatch found;
  if (!std::regex_search(finding.evidence, found, std::regex(pattern))) {
    ADD_FAILURE() << pattern << " is not in: " << finding.evidence;
    return 0;
  }
  std::string count = found[seconds_first ? 3 : 1];
  std::erase(count, ',');
  return std::stod(count) * (seconds_first ? parsed_seconds(found[1], found[2]) : parsed_seconds(found[2], found[3]));
}

TEST(Agreement, EvidenceMultipliesOutToTheCostOfTheExchange) {
  SyntheticRun plan = uneven_run(2);
  plan.steps = 1'000;
  plan.change = [](int, std::int64_t batch, SyntheticStep& step) {
    step.exchange_ns = batch % 2 == 0 ? 8 * kMs : kMs / 8;  // no stalls: every second one
  };
  const Synthetic run(plan);
  const Finding* const finding = run.finding("exchange");
  ASSERT_NE(finding, nullptr);
  EXPECT_NEAR(product_in(*finding, "([0-9,]+) exchanges held up the training for ([0-9.]+) ([a-z]+) each", false),
              finding->seconds, 0.005 * finding->seconds)
      << finding->evidence;
  EXPECT_THAT(finding->evidence, HasSubstr("median 125 us"));
  EXPECT_THAT(finding->title, HasSubstr(seconds_text(finding->seconds)));
}

TEST(Agreement, EvidenceMultipliesOutToTheCostOfStalls) {
  SyntheticRun plan;
  plan.steps = 500;
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    if (rank == 1 && batch % 50 == 0) phase(step, Phase::kCallbacks) += (batch % 100 == 0 ? 300 : 100) * kMs;
  };
  const Synthetic run(plan);
  const Finding* const finding = run.finding("stalls");
  ASSERT_NE(finding, nullptr);
  EXPECT_NEAR(product_in(*finding, "([0-9,]+) times a batch took ([0-9.]+) ([a-z]+) longer", false), finding->seconds,
              0.005 * finding->seconds)
      << finding->evidence;
}

TEST(Agreement, EvidenceMultipliesOutToTheCostOfALoader) {
  SyntheticRun plan;
  plan.change = [](int, std::int64_t, SyntheticStep& step) { phase(step, Phase::kDataloaderNext) += 5 * kMs; };
  const Synthetic run(plan);
  const Finding* const finding = run.finding("loader");
  ASSERT_NE(finding, nullptr);
  EXPECT_NEAR(product_in(*finding, "would take ([0-9.]+) ([a-z]+) less \\([^)]*\\), in ([0-9,]+) batches", true),
              finding->seconds, 0.005 * finding->seconds)
      << finding->evidence;
}

// What the others waited, of that beyond an ordinary rank, less stalls, and in exchanges: the finding's own number.
TEST(Agreement, AStragglersNumbersAddUp) {
  const Synthetic run(run_with_a_rank_without_a_core());
  const Finding* const finding = run.finding("straggler");
  ASSERT_NE(finding, nullptr);
  const Straggler& straggler = run.analysis.stragglers.ranks.front();
  EXPECT_THAT(
      finding->evidence,
      HasSubstr(fmt::format("the others waited {} for it: {} beyond what they wait for an ordinary rank, and {} "
                            "that exchanges took longer",
                            seconds_text(straggler.waited_s), seconds_text(straggler.cost_s),
                            seconds_text(finding->seconds - straggler.cost_s))));
}

TEST(Agreement, ContentionHasItsRowInTheWaterfall) {
  SyntheticRun plan;
  plan.foreign_percent = [](int) { return 90.0; };
  plan.cpu_wait_percent = [](int) { return 47.9; };
  const Synthetic run(plan);
  const Finding* const finding = run.finding("contention");
  ASSERT_NE(finding, nullptr);
  ASSERT_TRUE(run.analysis.waterfall.no_core_s);
  EXPECT_NEAR(*run.analysis.waterfall.no_core_s, finding->seconds, 1e-9);
  const std::string row =
      fmt::format("  {:<24}{:>7}{:>12}", "no core", format_percent(finding->share), seconds_text(finding->seconds));
  EXPECT_THAT(render_analysis(run.analysis, {.width = 200}), HasSubstr(row));
  EXPECT_THAT(render_report(run.profile, run.analysis), HasSubstr("of that no core"));
  EXPECT_FALSE(Synthetic(SyntheticRun{}).analysis.waterfall.no_core_s.value_or(0) > 0);
}

}  // namespace
}  // namespace dtrain::analysis
