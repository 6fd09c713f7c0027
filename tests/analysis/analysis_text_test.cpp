#include "dtrain/analysis/analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "synthetic.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;
using testing::HasSubstr;
using testing::Not;

Analysis slow_loader() {
  test::SyntheticRun plan;
  plan.change = [](int, std::int64_t, test::SyntheticStep& step) { phase(step, Phase::kDataloaderNext) += 5 * kMs; };
  return Synthetic(plan).analysis;
}

TEST(AnalysisText, SaysWhatToChangeFirst) {
  const std::string text = render_analysis(slow_loader(), {});
  EXPECT_THAT(text, HasSubstr("1. the ranks wait 1.0"));
  EXPECT_THAT(text, HasSubstr("-> load faster"));
  EXPECT_THAT(text, HasSubstr("100.0%"));
  EXPECT_LT(text.find("Findings"), text.find("From ideal to measured"));
  EXPECT_THAT(text, HasSubstr("MAD"));
  EXPECT_THAT(text, HasSubstr("all ranks share a clock"));
  EXPECT_THAT(text, HasSubstr("batches are there at once"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(AnalysisText, KeepsToItsWidth) {
  std::istringstream lines(render_analysis(slow_loader(), {.width = 100}));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(AnalysisText, WhatIfSaysWhatEachNumberRestsOn) {
  const std::string text = render_what_if(slow_loader(), {});
  EXPECT_THAT(text, HasSubstr("everything else takes what it took"));
  EXPECT_THAT(text, HasSubstr("dtrain launch --mock loader"));
  EXPECT_THAT(text, HasSubstr("16 ranks"));
}

TEST(AnalysisText, AnEmptyRunIsReadable) {
  const RunFolder folder;
  const Analysis analysis = analyze(load_run(folder.path()));
  EXPECT_THAT(render_analysis(analysis, {}), HasSubstr("no batch was recorded"));
  EXPECT_THAT(render_what_if(analysis, {}), HasSubstr("nothing to predict from"));
  EXPECT_FALSE(to_json(analysis).dump().empty());
}

TEST(AnalysisJson, HoldsEverySection) {
  const Json json = to_json(slow_loader());
  for (const char* key :
       {"schema", "summary", "findings", "steps", "rank_steps", "waterfall", "stragglers", "what_if"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["findings"][0]["id"], "loader");
  EXPECT_EQ(json["findings"][0]["rank"], nullptr);
  EXPECT_EQ(json["rank_steps"].size(), 2u);
}

}  // namespace
}  // namespace dtrain::analysis
