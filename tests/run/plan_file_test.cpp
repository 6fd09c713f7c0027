#include "dtrain/rank/plan_file.h"

#include <gtest/gtest.h>

#include "dtrain/base/file.h"
#include "dtrain/config/experiment.h"
#include "run_harness.h"

namespace dtrain::rank {
namespace {

// --continue compares it with that of the next attempt, which names the experiment file by its whole path.
TEST(PlanFile, AModelsPathDoesNotDependOnTheCurrentFolder) {
  const TemporaryFolder folder;
  write_file_atomic(folder.path() / "net.yaml",
                    "name: net\nmodel: net.pt\nloss: cross_entropy\noptimizer: {kind: sgd, lr: 0.1}\n"
                    "data: {format: npy, training: {features: a.npy, target: b.npy}}\n"
                    "hyperparameters: {global_batch_size: 8}\nsearcher: {max_length: {batches: 1}}\n");
  for (const fs::path& file : {folder.path() / "net.yaml", fs::relative(folder.path() / "net.yaml")}) {
    const config::Experiment experiment = config::read_experiment(file, {});
    const PlanFacts facts{.experiment = experiment};
    EXPECT_EQ(plan_json(facts).at("experiment").at("model"), (folder.path() / "net.pt").string()) << file;
  }
}

const std::string kToken = "environment.environment_variables.TOKEN=secret";

// A run goes on whose plan an earlier version wrote with the values.
TEST(PlanFile, ValuesOfVariablesAreInNoPartOfItAndComeBack) {
  const TemporaryFolder folder;
  const fs::path plan = folder.path() / "plan.json";
  const Json before = {{"overrides", {"a=1", kToken}},
                       {"command", {"program", "--set", kToken}},
                       {"experiment", {{"environment", {{"environment_variables", {{"TOKEN", "secret"}}}}}}}};
  write_plan_file(plan, {{"overrides", {kToken, "b=2"}}, {"before", {{"continuation", 1}, {"plan", before}}}});
  const std::string text = read_file(plan);
  EXPECT_EQ(text.find("secret"), std::string::npos) << text;
  const Json json = Json::parse(text);
  EXPECT_EQ(overrides_of(plan, json), (std::vector<std::string>{kToken, "b=2"}));
  EXPECT_EQ(overrides_of(plan, json["before"]["plan"]), (std::vector<std::string>{"a=1", kToken}));
  EXPECT_EQ(fs::status(folder.path() / "overrides.json").permissions(), fs::perms(0600));
}

TEST(PlanFile, AnOverrideThatLooksHiddenIsItself) {
  const TemporaryFolder folder;
  const fs::path plan = folder.path() / "plan.json";
  const std::string text = "description=see (1 in overrides.json)";
  write_plan_file(plan, {{"overrides", {text}}});
  EXPECT_EQ(overrides_of(plan, Json::parse(read_file(plan))), std::vector<std::string>{text});
}

}  // namespace
}  // namespace dtrain::rank
