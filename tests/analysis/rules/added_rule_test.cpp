// A rule of this test alone: its declaration, appended to the list, is all that it needs to be read, to have a schema,
// and to be judged.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "../run_folder.h"
#include "document/document.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/config/diagnostic.h"
#include "findings/judgement.h"
#include "keys/visitors.h"

namespace dtrain::analysis::findings {
namespace {

std::string judge_first_step(const RuleData& data, const Parameters& p, Finding& result) {
  Items ranks(result, "ranks");
  for (const StepSeries& series : data.steps) {
    if (series.evaluation || series.steps.size() < 2) continue;
    double others_s = 0;
    for (const Step& step : series.steps) others_s += &step == &series.steps.front() ? 0 : step.seconds;
    const double times = series.steps.front().seconds / (others_s / static_cast<double>(series.steps.size() - 1));
    ranks.add({{"rank", series.rank}, {"times", times}}, static_cast<std::int64_t>(series.steps.size()),
              times > p["factor"]);
  }
  return ranks.finish("no rank has recorded two steps");
}

Judgement first_step() {
  return {.id = "FirstStep",
          .text = "A first step that takes much longer than the others.",
          .group = "system",
          .unit = "ranks",
          .title = "Compares a rank's first step with its others.",
          .advice = "Load and compile before the training.",
          .parameters = {real("factor", "Times the mean of the others; it should take no more.", 10, {1, 1000})},
          .judge = judge_first_step};
}

RuleSet with_first_step() {
  std::vector<Judgement> all = judgements();
  all.push_back(first_step());
  return RuleSet(all);
}

config::Keys::Declare keys_of(RuleSet& rules) {
  return [&rules](config::Keys& keys) { rules.declare_keys(keys); };
}

Json parameters_of(RuleSet& rules) {
  return config::rules_json(keys_of(rules));
}

RuleSet read_yaml(const std::string& text) {
  config::Collector collector("rules.yaml");
  RuleSet rules = with_first_step();
  const auto document = config::parse_yaml(text, collector);
  config::Section section(&*document, "", document->at, collector);
  config::KeyReader::read_all(section, keys_of(rules));
  collector.throw_if_any();
  return rules;
}

TEST(AddedRule, IsReadFromYaml) {
  RuleSet rules = read_yaml("{StepOutlier: {stddev: 2}, FirstStep: {factor: 4}}");
  EXPECT_EQ(parameters_of(rules)["FirstStep"]["factor"], 4);
  EXPECT_EQ(parameters_of(rules)["StepOutlier"]["stddev"], 2);
  try {
    read_yaml("FirstStep: {factor: 0.5}\n");
    FAIL() << "0.5 was read";
  } catch (const config::ConfigErrors& errors) {
    EXPECT_STREQ(errors.what(), "rules.yaml:1: FirstStep.factor: must be a number from 1 to 1000, not '0.5'");
  }
}

TEST(AddedRule, IsReadFromOptionsAndThePlan) {
  RuleSet rules = with_first_step();
  const std::vector<std::string> options{"FirstStep.factor=4", "StepOutlier.stddev=2"};
  config::read_overrides(options, keys_of(rules));
  const Json plan = parameters_of(rules);
  EXPECT_EQ(to_line(plan["FirstStep"]), R"({"factor":4})");
  RuleSet from_plan = with_first_step();
  config::read_rules(plan, keys_of(from_plan));
  EXPECT_EQ(parameters_of(from_plan), plan);
}

TEST(AddedRule, HasASchema) {
  RuleSet defaults = with_first_step();
  const Json own = config::SchemaWriter::write(keys_of(defaults))["properties"]["FirstStep"];
  EXPECT_EQ(own["description"], first_step().text);
  EXPECT_EQ(to_line(own["properties"]["factor"]),
            R"({"description":"Times the mean of the others; it should take no more.","type":"number","minimum":1,)"
            R"("maximum":1000,"default":10})");
}

TEST(AddedRule, IsJudgedBesideTheOthers) {
  RunFolder folder;
  folder.append("profile/rank-0000.jsonl", header_line(0, 2) + step_line(1, 0, 86, 0) + step_line(2, 100, 6, 0) +
                                               step_line(3, 120, 6, 0) + kFinished);  // 100 ms, 20 ms, 20 ms
  folder.append("profile/rank-0001.jsonl", header_line(1, 2) + step_line(1, 0, 6, 0) + step_line(2, 100, 6, 0) +
                                               step_line(3, 120, 6, 0) + kFinished);
  const RunProfile profile = load_run(folder.path());
  RuleData data;
  data.steps = step_series(profile);

  const std::vector<Finding> results = read_yaml("FirstStep: {factor: 4}\n").judge(data);
  EXPECT_EQ(results.front().id, "StepOutlier");
  const Finding& own = results.back();
  EXPECT_EQ(own.id, "FirstStep");
  EXPECT_EQ(to_line(own.parameters), R"({"factor":4})");
  EXPECT_EQ(to_line(own.counts), R"({"ranks":2,"not_known":0,"fine":1,"triggered":1})");
  EXPECT_NEAR(own.details["ranks"][0]["times"].get<double>(), 5, 1e-9);
  EXPECT_NEAR(own.details["ranks"][1]["times"].get<double>(), 1, 1e-9);
  EXPECT_EQ(triggered_text(own), "1 rank, of 6 data points judged");
  EXPECT_EQ(with_first_step().judge(data).back().triggered, 0);  // ten times are allowed
  EXPECT_FALSE(with_first_step().judge(RuleData()).back().applicable());
}

}  // namespace
}  // namespace dtrain::analysis::findings
