#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/config/experiment.h"
#include "temporary_file.h"

namespace dtrain::config {
namespace {

using testing::ElementsAre;

Experiment read_with(const std::vector<std::string>& overrides, const std::string& text = kLeast) {
  const TemporaryFile file(text);
  return read_experiment(file.path(), overrides);
}

std::string override_error(const std::vector<std::string>& overrides, const std::string& text = kLeast) {
  try {
    read_with(overrides, text);
  } catch (const ConfigErrors& errors) {
    return errors.what();
  }
  return "accepted";
}

TEST(Overrides, ReplaceAddAndCreateSections) {
  const Experiment experiment =
      read_with({"name=other", "hyperparameters.global_batch_size=32", "optimizations.aggregation_frequency=4",
                 "hyperparameters.optimizer.lr=1e-3", "data.path=/somewhere"});
  EXPECT_EQ(experiment.name, "other");
  EXPECT_EQ(experiment.global_batch_size, 32);
  EXPECT_EQ(experiment.optimizations.aggregation_frequency, 4);
  EXPECT_EQ(experiment.hyperparameters["optimizer"]["lr"], 0.001);
  EXPECT_EQ(experiment.data["path"], "/somewhere");
}

TEST(Overrides, AreNotPartOfTheTextAsGiven) {
  EXPECT_EQ(read_with({"name=other"}).text, kLeast);
}

TEST(Overrides, ValuesAreYaml) {
  const Experiment experiment = read_with(
      {"labels=[a, b]", "searcher={max_length: {batches: 5}}", "data.text='5'", "data.none=", "data.equals=a=b"});
  EXPECT_THAT(experiment.labels, ElementsAre("a", "b"));
  EXPECT_EQ(experiment.searcher.max_length, (Length{LengthUnit::kBatches, 5}));
  EXPECT_EQ(experiment.data["text"], "5");
  EXPECT_TRUE(experiment.data["none"].is_null());
  EXPECT_EQ(experiment.data["equals"], "a=b");
}

TEST(Overrides, OneUnitReplacesTheWholeLength) {
  EXPECT_EQ(read_with({"searcher.max_length.batches=7"}).searcher.max_length, (Length{LengthUnit::kBatches, 7}));
  const Experiment experiment =
      read_with({"min_validation_period.epochs=1"}, kLeast + "min_validation_period: {records: 9}\n");
  EXPECT_EQ(experiment.min_validation_period, (Length{LengthUnit::kEpochs, 1}));
}

TEST(Overrides, TheLastOneWins) {
  EXPECT_EQ(read_with({"scheduling_unit=5", "scheduling_unit=6"}).scheduling_unit, 6);
  EXPECT_EQ(read_with({"searcher.max_length.batches=7", "searcher.max_length.records=8"}).searcher.max_length,
            (Length{LengthUnit::kRecords, 8}));
}

TEST(Overrides, RepairAnErrorOfTheFile) {
  EXPECT_EQ(override_error({"scheduling_unit=5"}, kLeast + "scheduling_unit: none\n"), "accepted");
}

TEST(Overrides, ErrorsNameTheOverrideByItsNumber) {
  EXPECT_EQ(override_error({"scheduling_unit=0"}),
            "--set:1: scheduling_unit: must be a whole number of at least 1, not '0'");
  EXPECT_EQ(override_error({"name=a", "optimizations.agregation_frequency=2"}),
            "--set:2: optimizations.agregation_frequency: unknown key; did you mean 'aggregation_frequency'?");
  EXPECT_EQ(override_error({"searcher.max_length.batch=3"}),
            "--set:1: searcher.max_length.batch: unknown key; did you mean 'batches'?");
}

TEST(Overrides, ComeAfterTheErrorsOfTheFile) {
  const TemporaryFile file(kLeast + "nmae: x\n");
  try {
    read_experiment(file.path(), std::vector<std::string>{"checkpoint_policy=newest"});
    FAIL() << "was accepted";
  } catch (const ConfigErrors& errors) {
    ASSERT_EQ(errors.diagnostics().size(), 2u);
    EXPECT_EQ(errors.diagnostics()[0].key, "nmae");
    EXPECT_EQ(errors.diagnostics()[0].line, 4);
    EXPECT_EQ(errors.diagnostics()[1].file, "--set");
  }
}

TEST(Overrides, WrongFormsAreErrors) {
  const std::string form = " is not of the form key=value or section.key=value";
  EXPECT_EQ(override_error({"name"}), "--set:1: 'name'" + form);
  EXPECT_EQ(override_error({"=3"}), "--set:1: '=3'" + form);
  EXPECT_EQ(override_error({"a..b=3"}), "--set:1: 'a..b=3'" + form);
  EXPECT_EQ(override_error({"entrypoint.x=3"}),
            "--set:1: entrypoint.x: cannot be set: 'entrypoint' is 'trial', not a mapping");
  EXPECT_EQ(override_error({"labels=[a"}), "--set:1: labels: not valid YAML: a list opened with '[' is not closed");
  EXPECT_EQ(override_error({"data={a: 1, a: 2}"}), "--set:1: data.a: given twice; the first is on line 1");
}

}  // namespace
}  // namespace dtrain::config
