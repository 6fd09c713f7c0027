// The curves of learning, from metrics.jsonl and events.jsonl written by hand.
#include "dtrain/analysis/run_history.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/clock.h"
#include "dtrain/profile/run_records.h"
#include "run_folder.h"

namespace dtrain::analysis {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

RunCurves read_curves(const std::filesystem::path& run_dir, std::size_t most = kMostCurvePoints) {
  CurveReader reader(read_history(run_dir).attempts, most);
  profile::read_records(run_dir, profile::RecordFile::kMetrics, [&](const Json& line) { reader.add(line); });
  return reader.curves();
}

constexpr int kNoon = 1'772'366'400;  // 2026-03-01T12:00:00Z

// Seconds after noon.
std::string utc(double seconds) {
  return format_utc(Nanoseconds(std::llround((kNoon + seconds) * 1e9)));
}

std::string training(double time, int batch, const std::string& metrics, int samples = 0) {
  return fmt::format(R"({{"time":"{}","kind":"training","batch":{},"samples":{},"learning_rate":0.5,"metrics":{}}})"
                     "\n",
                     utc(time), batch, samples, metrics);
}

std::string validation(double time, int batch, const std::string& metrics) {
  return fmt::format(R"({{"time":"{}","kind":"validation","batch":{},"samples":100,"metrics":{}}})"
                     "\n",
                     utc(time), batch, metrics);
}

std::string started(double time, int attempt, int step) {
  return fmt::format(R"({{"time":"{}","event":"attempt_started","attempt":{},"step":{}}})"
                     "\n",
                     utc(time), attempt, step);
}

std::string event(double time, const std::string& what) {
  return fmt::format(R"({{"time":"{}","event":"{}"}})"
                     "\n",
                     utc(time), what);
}

std::vector<std::int64_t> batches(const Curve& curve) {
  std::vector<std::int64_t> result;
  for (const CurvePoint& point : curve.points) result.push_back(point.batch);
  return result;
}

std::vector<double> seconds(const Curve& curve) {
  std::vector<double> result;
  for (const CurvePoint& point : curve.points) result.push_back(point.seconds);
  return result;
}

class CurvesTest : public testing::Test {
 protected:
  void metrics(const std::string& lines) { folder_.append("metrics.jsonl", lines); }
  void events(const std::string& lines) { folder_.append("events.jsonl", lines); }
  RunCurves read(std::size_t most = kMostCurvePoints) const { return read_curves(folder_.path(), most); }
  static const Curve& loss(const RunCurves& run) { return *run.find(CurveKind::kTraining, "loss"); }
  RunFolder folder_;
};

TEST_F(CurvesTest, ARunWithoutMetricsHasNoCurves) {
  EXPECT_THAT(read().curves, SizeIs(0));
  metrics("\n[1]\n{\"kind\":\"training\"}\n{\"kind\":\"other\",\"metrics\":{\"loss\":1}}\n");
  EXPECT_THAT(read().curves, SizeIs(0));
}

TEST_F(CurvesTest, FiveAttemptsAreOneCurve) {
  // The second went on from batch 20, and saved nothing; the third did so again. The fourth was killed with its
  // launcher, so that no event says when it ended: its last line is of second 1130.
  events(started(0, 1, 0) + event(50, "attempt_failed") +       // 50 s
         started(100, 2, 20) + event(110, "attempt_failed") +   // 10 s
         started(200, 3, 20) + event(240, "attempt_stopped") +  // 40 s
         started(1000, 4, 40) + event(1001, "rank_running") +   // 130 s
         started(5000, 5, 60) + event(5030, "run_ended"));
  metrics(training(30, 10, R"({"loss":5})") + training(40, 20, R"({"loss":4})") + validation(41, 20, R"({"acc":0.5})") +
          training(220, 30, R"({"loss":3})") + training(230, 40, R"({"loss":2})") +
          training(1120, 50, R"({"loss":1.5})") + training(1130, 60, R"({"loss":1})") +
          training(5020, 70, R"({"loss":0.5})") + validation(5030, 70, R"({"acc":0.75})"));
  const RunCurves run = read();
  EXPECT_THAT(batches(loss(run)), ElementsAre(10, 20, 30, 40, 50, 60, 70));
  EXPECT_THAT(seconds(loss(run)), ElementsAre(30, 40, 60 + 20, 60 + 30, 100 + 120, 100 + 130, 230 + 20));
  EXPECT_THAT(batches(*run.find(CurveKind::kValidation, "acc")), ElementsAre(20, 70));
  ASSERT_THAT(run.restarts, SizeIs(4));
  std::vector<std::int64_t> restarts;
  std::vector<double> at;
  for (const Restart& restart : run.restarts) {
    restarts.push_back(restart.batch);
    at.push_back(restart.seconds);
  }
  EXPECT_THAT(restarts, ElementsAre(20, 20, 40, 60));
  EXPECT_THAT(at, ElementsAre(50, 60, 100, 230));
  EXPECT_EQ(run.restarts.back().attempt, 5);
  EXPECT_EQ(run.batches, 70);
  EXPECT_EQ(run.seconds, 260);
  EXPECT_EQ(run.find(CurveKind::kValidation, "acc")->greatest()->batch, 70);
}

TEST_F(CurvesTest, ARunThatBeginsAnewHasTimeFromThereOn) {
  events(started(0, 1, 0) + event(50, "attempt_failed") + started(100, 2, 0) + event(120, "attempt_failed") +
         started(200, 3, 10));
  metrics(training(110, 10, R"({"loss":2})") + training(210, 20, R"({"loss":1})"));
  const RunCurves run = read();
  EXPECT_THAT(seconds(loss(run)), ElementsAre(10, 30));
  ASSERT_THAT(run.restarts, SizeIs(1));
  EXPECT_EQ(run.restarts[0].seconds, 20);
}

TEST_F(CurvesTest, TimeDoesNotGoBack) {
  events(started(0, 1, 0));
  metrics(training(30, 10, R"({"loss":3})") + training(-3600, 20, R"({"loss":2})") + training(40, 30, R"({"loss":1})"));
  EXPECT_THAT(seconds(loss(read())), ElementsAre(30, 30, 40));
}

TEST_F(CurvesTest, WithoutEventsTimeBeginsWithTheFirstLine) {
  metrics(training(30, 10, R"({"loss":3})") + training(45, 20, R"({"loss":2})"));
  EXPECT_THAT(seconds(loss(read())), ElementsAre(0, 15));
}

TEST_F(CurvesTest, ATornLastLineIsNone) {
  metrics(training(1, 10, R"({"loss":3})") + training(2, 20, R"({"loss":2})"));
  const std::string torn = training(3, 30, R"({"loss":1})");
  for (const std::size_t length : {std::size_t{1}, std::size_t{40}, torn.size() - 3}) {
    RunFolder folder;
    folder.append("metrics.jsonl", training(1, 10, R"({"loss":3})") + torn.substr(0, length));
    EXPECT_THAT(read_curves(folder.path()).curves.front().points, SizeIs(1)) << length;
  }
  RunFolder whole;
  whole.append("metrics.jsonl", training(1, 10, R"({"loss":3})") + torn.substr(0, torn.size() - 1));
  EXPECT_THAT(read_curves(whole.path()).curves.front().points, SizeIs(2)) << "only its newline is missing";
}

TEST_F(CurvesTest, WhatIsNotFiniteIsCountedAndLeavesAGap) {
  metrics(training(1, 10, R"({"loss":3})") + training(2, 20, R"({"loss":"nan"})") +
          training(3, 30, R"({"loss":"-inf"})") + training(4, 40, R"({"loss":1})") +
          training(5, 50, R"({"loss":"inf"})"));
  const RunCurves run = read();
  const Curve& curve = loss(run);
  ASSERT_THAT(curve.points, SizeIs(5));
  EXPECT_TRUE(std::isnan(curve.points[1].mean));
  EXPECT_TRUE(std::isnan(curve.points[1].low));
  EXPECT_EQ(curve.non_finite(), 3);
  EXPECT_EQ(curve.first_non_finite(), 20);
  EXPECT_EQ(curve.least()->value, 1);
  EXPECT_EQ(curve.greatest()->value, 3);
  EXPECT_TRUE(std::isinf(curve.last().value));
  const CurvePoint all = together(curve.points);
  EXPECT_EQ(all.mean, 2);
  EXPECT_EQ(all.low, 1);
  EXPECT_EQ(all.high, 3);
  EXPECT_EQ(all.finite, 2);
  EXPECT_EQ(all.first_non_finite, 20);
}

TEST_F(CurvesTest, ACurveOfNothingFiniteHasNoExtremes) {
  metrics(training(1, 10, R"({"loss":"nan"})") + training(2, 20, R"({"loss":"nan"})"));
  const RunCurves run = read(2);
  EXPECT_FALSE(loss(run).least());
  EXPECT_FALSE(loss(run).greatest());
  EXPECT_TRUE(std::isnan(loss(run).last().value));
}

TEST_F(CurvesTest, ThinningKeepsExtremesMeansAndCounts) {
  constexpr int kLines = 10'000;
  CurveReader reader({}, 100);
  double sum = 0;
  for (int i = 1; i <= kLines; ++i) {
    const double value = i == 7'777 ? 1e6 : i == 1'234 ? -5.0 : i % 10;
    const Json number = i == 5'000 ? Json("nan") : Json(value);
    if (i != 5'000) sum += value;
    reader.add({{"kind", "training"}, {"batch", 10 * i}, {"metrics", {{"loss", number}}}});
    if (i % 997 == 0) {
      EXPECT_LE(loss(reader.curves()).points.size(), 100u);
    }
  }
  const RunCurves run = reader.curves();
  const Curve& curve = loss(run);
  EXPECT_THAT(curve.points.size(), testing::AllOf(testing::Ge(50u), testing::Le(100u)));
  EXPECT_EQ(curve.greatest()->value, 1e6);
  EXPECT_EQ(curve.greatest()->batch, 77'770);
  EXPECT_EQ(curve.least()->value, -5);
  EXPECT_EQ(curve.least()->batch, 12'340);
  EXPECT_EQ(curve.last().batch, 100'000);
  EXPECT_EQ(curve.last().value, 0);
  EXPECT_EQ(curve.first_non_finite(), 50'000);
  EXPECT_EQ(curve.non_finite(), 1);
  std::int64_t finite = 0;
  double weighted = 0;
  std::int64_t before = 0;
  for (const CurvePoint& point : curve.points) {
    EXPECT_LT(before, point.batch);
    before = point.batch;
    finite += point.finite;
    weighted += point.mean * static_cast<double>(point.finite);
    EXPECT_LE(point.low, point.mean);
    EXPECT_GE(point.high, point.mean);
  }
  EXPECT_EQ(finite, kLines - 1);
  EXPECT_NEAR(weighted, sum, 1e-3);
}

TEST_F(CurvesTest, ABatchThatComesAgainTakesThePlaceOfWhatFollowed) {
  CurveReader reader;
  for (const int batch : {10, 20, 30, 40, 30, 40, 50}) {
    reader.add({{"kind", "training"}, {"batch", batch}, {"metrics", {{"loss", batch}}}});
    reader.add({{"kind", "validation"}, {"batch", batch}, {"metrics", {{"loss", 2 * batch}}}});
  }
  const RunCurves run = reader.curves();
  EXPECT_THAT(batches(loss(run)), ElementsAre(10, 20, 30, 40, 50));
  EXPECT_THAT(batches(*run.find(CurveKind::kValidation, "loss")), ElementsAre(10, 20, 30, 40, 50));
}

// read_listed_run() reads usual lines without a tree of their values. Each line is usual, or unusual in its own way.
TEST_F(CurvesTest, LinesAreReadQuicklyAsTheyAreReadWhole) {
  events(started(0, 1, 0));
  const std::string time = utc(30);
  std::string lines = training(10, 10, R"({"loss":0.1,"accuracy":1e-300})", 64) +
                      training(11, 20, R"({"loss":"nan","norm":"-inf","large":18446744073709551615})", 64) +
                      validation(12, 20, R"({"loss":3,"accuracy":-0.0})") + "\n[1]\n{\"kind\":\"training\"}\n" +
                      training(13, 30, R"({"loss":1,"loss":2})") +                      // a name that is there twice
                      training(14, 40, R"({"loss":{"a":1},"b":null,"c":"x","d":5})") +  // values that are none
                      training(15, 35, R"({"loss":7})") +                               // a batch that comes again
                      training(16, 50, "{}") + training(17, 60, "3");
  for (const char* const members :
       {R"("kind":"training","kind":"validation","batch":70,"metrics":{"loss":1})",
        R"("kind":"training","batch":80,"samples":1.5,"metrics":{"loss":1})",
        R"("kind":"training","batch":81,"samples":"many","learning_rate":[1],"metrics":{"loss":1})",
        R"("kind":"training","batch":9223372036854775807,"metrics":{"loss":1})",
        R"("kind":"training","batch":8.5,"gradient_norm":"inf","metrics":{"loss":1})",
        R"("kind":7,"batch":90,"metrics":{"loss":1})", R"("batch":91,"metrics":{"loss":1})",
        R"("kind":"training","batch":92,"learning_rate":"low","metrics":{"loss":1e999})",
        R"("kind":"training","batch":93,"metrics":{"loss":1},"metrics":4)",
        R"("kind":"training","batch":94,"other":{"deep":[1]},"epoch":"x","metrics":{"loss":0.30000000000000004}})"
        R"( )"}) {
    lines += R"({"time":")" + time + R"(",)" + members + "}\n";
  }
  metrics(lines + "{\"kind\":\"training\",\"batch\":100,\"metrics\":{\"lo");
  profile::Damage damage = profile::read_events(folder_.path(), [](Json&&) {});
  damage.add(profile::read_records(folder_.path(), profile::RecordFile::kMetrics, [](Json&&) {}));
  const RunCurves whole = read();
  const ListedRun quick = read_listed_run(folder_.path(), std::nullopt);
  EXPECT_EQ(quick.line.damage, damage.text());
  ASSERT_EQ(quick.curves.curves.size(), whole.curves.size());
  for (std::size_t i = 0; i < whole.curves.size(); ++i) {
    const Curve &curve = quick.curves.curves[i], &expected = whole.curves[i];
    EXPECT_EQ(curve.kind, expected.kind);
    EXPECT_EQ(curve.name, expected.name);
    ASSERT_EQ(batches(curve), batches(expected)) << curve.name;
    for (std::size_t j = 0; j < curve.points.size(); ++j) {
      EXPECT_THAT(curve.points[j].last, testing::NanSensitiveDoubleEq(expected.points[j].last));
      EXPECT_EQ(curve.points[j].seconds, expected.points[j].seconds);
    }
  }
}

TEST_F(CurvesTest, ThroughputIsThatBetweenTwoLinesOfAnAttempt) {
  events(started(0, 1, 0) + event(100, "attempt_failed") + started(200, 2, 30));
  metrics(training(50, 10, R"({"loss":1})", 1000) +   // with the start of the processes: no throughput
          training(60, 20, R"({"loss":1})", 1000) +   // 100 a second
          validation(80, 20, R"({"loss":1})") +       // 20 s that are no training
          training(85, 30, R"({"loss":1})", 1000) +   // 200 a second
          training(250, 40, R"({"loss":1})", 1000) +  // of two attempts
          training(254, 50, R"({"loss":1})", 1000));
  const RunCurves run = read();
  const Curve* throughput = run.find(CurveKind::kThroughput, "throughput");
  ASSERT_NE(throughput, nullptr);
  EXPECT_THAT(batches(*throughput), ElementsAre(20, 30, 50));
  EXPECT_DOUBLE_EQ(throughput->points[0].mean, 100);
  EXPECT_DOUBLE_EQ(throughput->points[1].mean, 200);
  EXPECT_DOUBLE_EQ(throughput->points[2].mean, 250);
  EXPECT_DOUBLE_EQ(run.samples_per_s.value(), 3000.0 / (10 + 5 + 4));
}

TEST_F(CurvesTest, RatesHaveCurvesOfTheirOwn) {
  metrics(R"({"kind":"training","batch":10,"learning_rate":0.1,"gradient_norm":"inf","metrics":{"loss":1}})"
          "\n"
          R"({"kind":"training","batch":20,"learning_rate":0.05,"gradient_norm":2.5,"metrics":{"loss":1}})"
          "\n");
  const RunCurves run = read();
  EXPECT_EQ(run.find(CurveKind::kLearningRate, "learning rate")->last().value, 0.05);
  const Curve* norm = run.find(CurveKind::kGradientNorm, "gradient norm");
  EXPECT_EQ(norm->non_finite(), 1);
  EXPECT_EQ(norm->last().value, 2.5);
}

}  // namespace
}  // namespace dtrain::analysis
