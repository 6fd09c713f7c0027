#include "dtrain/rank/plan_file.h"

#include <gtest/gtest.h>

#include "dtrain/base/file.h"
#include "dtrain/config/experiment.h"
#include "run_harness.h"

namespace dtrain::run {
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

}  // namespace
}  // namespace dtrain::run
