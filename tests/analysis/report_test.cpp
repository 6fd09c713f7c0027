#include "dtrain/analysis/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "report/charts.h"
#include "report/page.h"
#include "report/sections.h"
#include "run_folder.h"

namespace dtrain::analysis {
namespace {

using report::Histogram;
using report::Point;
using report::point;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kMs = 1'000'000;

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// As a bounded dump keeps 100,000 steps: 10,000 lines, then windows; `hosts` agents.
RunProfile long_run(int ranks, int hosts) {
  RunProfile run;
  run.name = "long";
  run.world_size = ranks;
  for (int number = 0; number < ranks; ++number) {
    RankProfile& rank = run.ranks.emplace_back();
    rank.rank = number;
    rank.host = rank.agent = "node" + std::to_string(number % hosts);
    rank.header = {{"start_ns", 1}};
    std::int64_t now = 500 * kMs;
    for (int batch = 1; batch <= 10'000; ++batch) {
      StepLine step{{{{32}, 1}, now, (30 + batch % 7 + number % 3) * kMs}, batch};
      step.phases[static_cast<std::size_t>(profile::Phase::kForward)] = step.wall_ns - 5 * kMs;
      step.phases[static_cast<std::size_t>(profile::Phase::kAllreduceWait)] = 5 * kMs;
      now += 40 * kMs;
      rank.steps.push_back(step);
      rank.loader.push_back({{.time_ns = now, .queue_depth = batch % 4, .workers = 2}, batch});
      if (batch % 10 == 0) {
        rank.memory.push_back(
            {.time_ns = now, .batch = batch, .resident_bytes = 400'000'000 + batch, .peak_bytes = 500'000'000});
      }
    }
    for (int i = 0; i < 283; ++i) {
      WindowLine window{{.first_batch = 10'001 + 318 * i, .last_batch = 10'318 + 318 * i, .start_ns = now}};
      window.steps = window.exchanged = 318;
      window.wall_ns = 318 * 31 * kMs;
      window.wall_max_ns = 60 * kMs;
      window.phases[static_cast<std::size_t>(profile::Phase::kForward)] = window.wall_ns;
      rank.window_sketches.wall.add(31 * kMs, 318);
      now += 318 * 40 * kMs;
      window.end_ns = now;
      rank.windows.push_back(window);
    }
    rank.parts = {{"initialization", 1, 500 * kMs}, {"loop", 500 * kMs, now}};
  }
  for (int number = 0; number < hosts; ++number) {
    MonitorProfile& monitor = run.monitors.emplace_back();
    monitor.agent = monitor.host = "node" + std::to_string(number);
    monitor.header = {{"units", {{"cpu_util_simple", "percent"}, {"free_memory", "bytes"}}}};
    for (int i = 0; i < 8'000; ++i) {
      SystemLine& line = monitor.samples.emplace_back();
      line.time_ns = i * 500 * kMs;
      line.metrics = {{"cpu_util_simple", 50.0 + i % 50}, {"io_wait", 1.5}, {"free_memory", 8e9 + i}};
      line.cpu_util_per_core = {50, 51, 52, 53};
    }
  }
  return run;
}

TEST(ReportHtml, TextOfARunIsNeverMarkup) {
  EXPECT_EQ(html_escaped("<b a=\"1\" b='2'>&"), "&lt;b a=&quot;1&quot; b=&#39;2&#39;&gt;&amp;");
  report::Table table("<caption>", {{"<head>"}, {"n", true, "<hint>"}});
  table.row({"<cell>", report::Cell("7 <s>", 7, 2.0)}, 3);
  const std::string html = table.html();
  for (const char* mark :
       {"<caption>&lt;caption&gt;", "&lt;head&gt;", "title=\"&lt;hint&gt;\"", "&lt;cell&gt;", "7 &lt;s&gt;"}) {
    EXPECT_THAT(html, HasSubstr(mark));
  }
  EXPECT_THAT(html, HasSubstr("<tr data-rank=\"3\">"));
  EXPECT_THAT(html, HasSubstr("data-value=\"7\""));
  EXPECT_THAT(html, HasSubstr("--share:100.0%"));
}

TEST(ReportLines, ThinningKeepsTheExtremes) {
  std::vector<Point> points;
  for (int i = 0; i < 10'000; ++i) points.push_back(point(i, i == 7'777 ? 1'000 : 1));
  const std::vector<Point> thinned = report::thin(points, 100);
  ASSERT_LE(thinned.size(), 101u);
  ASSERT_GE(thinned.size(), 90u);
  double highest = 0;
  double lowest = 1e9;
  for (const Point& one : thinned) {
    highest = std::max(highest, one.high);
    lowest = std::min(lowest, one.low);
    EXPECT_LE(one.low, one.y);
    EXPECT_GE(one.high, one.y);
  }
  EXPECT_EQ(highest, 1'000);
  EXPECT_EQ(lowest, 1);
  EXPECT_EQ(report::thin({point(2, 5), point(1, 4)}, 100).front().x, 1) << "in order of time, and few stay as they are";
}

TEST(ReportLines, AHistogramCountsEverything) {
  Histogram histogram(10, 20, 5);
  for (const double value : {-3.0, 10.0, 11.9, 12.0, 19.99, 20.0, 1e9}) histogram.add(value);
  histogram.add(14, 3);
  EXPECT_EQ(histogram.counts(), (std::vector<std::int64_t>{3, 1, 3, 0, 3}));
}

TEST(ReportLines, NumbersAreRoundedToWhatAChartShows) {
  EXPECT_DOUBLE_EQ(report::rounded(0.0123456789), 0.01235);
  EXPECT_DOUBLE_EQ(report::rounded(-123456789), -123500000);
  EXPECT_EQ(report::rounded(0), 0);
}

TEST(ReportTimeline, SharesAreOfTheTimeInAColumn) {
  const RunProfile run = long_run(2, 1);
  const Analysis analysis = analyze(run);
  const report::Input input(run, analysis);
  const Json spec = report::timeline_spec(input);
  ASSERT_EQ(spec["rows"].size(), 2u);
  const Json& computing = spec["rows"][0]["shares"][0];
  const std::size_t middle = computing.size() / 2;  // in the windows: 31 of 40 ms
  EXPECT_NEAR(computing[middle].get<double>(), 77.5, 1.5);
  EXPECT_TRUE(spec["rows"][0]["shares"][4].empty()) << "no validation";
  EXPECT_NEAR(spec["dx"].get<double>() * static_cast<double>(computing.size()), input.end_s(), 1e-6);
}

TEST(Report, OfARunThatDidNothing) {
  RunFolder folder;
  const std::string html = render_report(load_run(folder.path()), analyze(load_run(folder.path())));
  EXPECT_THAT(html, HasSubstr("No batch was recorded."));
  EXPECT_THAT(html, HasSubstr("id=\"completeness\""));
}

TEST(Report, SaysWhatBecameOfEachAttemptAndCheckpoint) {
  RunProfile run;
  run.name = "resumed";
  run.world_size = 1;
  run.experiment = {{"searcher", {{"metric", "accuracy"}, {"smaller_is_better", false}}}};
  for (
      const char* event : {
          R"({"event":"attempt_started","attempt":1})",
          R"({"event":"checkpoint_saved","step":1200,"path":"/c/step-1200","metric":"accuracy","metric_value":0.5})",
          R"({"event":"checkpoint_saved","step":1210,"path":"/c/step-1210","deleted":["step-1200"],"metric":"accuracy","metric_value":0.75})",
          R"({"event":"attempt_failed","cause":"rank 0 was killed\n  a\n  b"})",
          R"({"event":"attempt_started","attempt":2,"step":1210})",
          R"({"event":"rank_failed","step":-1})",
          R"({"event":"run_ended","state":"failed","cause":"it does not fit:\n  c"})",
      }) {
    run.events.push_back(Json::parse(event));
  }
  const std::string html = render_report(run, analyze(run));
  const std::string section = html.substr(html.find("<section id=\"checkpoints\""));
  EXPECT_THAT(section, HasSubstr("2 checkpoints were saved, 1 is kept, the last one of batch 1,210"));
  EXPECT_THAT(section, HasSubstr("<td class=\"short\" data-value=\"0\">1 to 1,210</td>"));
  EXPECT_THAT(section, HasSubstr("rank 0 was killed (and 2 more lines)</td>"));
  EXPECT_THAT(section, HasSubstr(">none</td>"));
  EXPECT_THAT(section, HasSubstr(">accuracy = 0.5</td><td class=\"short\">deleted</td>"));
  EXPECT_THAT(section, HasSubstr(">accuracy = 0.75</td><td class=\"short\">yes, best, latest</td>"));
  EXPECT_THAT(html, HasSubstr("<span class=\"about\">1 rank, attempt 2 of 2: no batch"));
}

TEST(Report, HoldsNoEarlyEndOfAnElement) {
  RunFolder folder;
  folder.append(folder.rank_dump(0), header_line(0, 1) + step_line(1, 50, 1, 2) + kFinished);
  write_file_atomic(folder.path() / "plan.json", "{\"name\":\"</script><script>alert(1)</script>\"}");
  const std::filesystem::path file = folder.path() / "out.html";
  write_report(folder.path(), file);
  const std::string html = read_file(file);
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, HasSubstr("\\u003c/script>"));
  EXPECT_EQ(count_of(html, "</script>"), count_of(html, "<script>") + count_of(html, "<script type="));
}

TEST(Report, StaysUnder3MegabytesWhateverTheRun) {
  const RunProfile run = long_run(64, 8);
  const std::string html = render_report(run, analyze(run));
  EXPECT_LT(html.size(), 3'000'000u);
  EXPECT_GT(html.size(), 300'000u);
}

TEST(Report, OfMoreRanksThanCanBeDrawnSaysSo) {
  RunProfile run = long_run(1, 1);
  run.ranks[0].windows.clear();
  run.ranks[0].steps.resize(20);
  run.ranks.resize(200, run.ranks[0]);
  for (int number = 0; number < 200; ++number) run.ranks[static_cast<std::size_t>(number)].rank = number;
  const std::string html = render_report(run, analyze(run));
  EXPECT_THAT(html, HasSubstr("64 of 200 ranks are drawn"));
  EXPECT_LT(html.size(), 3'000'000u);
}

}  // namespace
}  // namespace dtrain::analysis
