// Every file of wrong/ has its exact errors beside it.
#include <filesystem>
#include <vector>

#include <gtest/gtest.h>

#include "dtrain/base/file.h"
#include "dtrain/config/experiment.h"

namespace dtrain::config {
namespace {

const std::filesystem::path kFolder = DTRAIN_SOURCE_DIR "/tests/config/wrong";

std::vector<std::string> wrong_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class WrongFile : public testing::TestWithParam<std::string> {
  // Errors name a file as it was given: relative names keep the expectations free of folders.
  void SetUp() override { std::filesystem::current_path(kFolder); }
};

TEST_P(WrongFile, GivesExactlyTheExpectedErrors) {
  const std::string expected = read_file(GetParam() + ".expected");
  try {
    read_experiment(GetParam() + ".yaml");
    FAIL() << "was accepted; expected:\n" << expected;
  } catch (const ConfigErrors& errors) {
    EXPECT_EQ(std::string(errors.what()) + "\n", expected);
    EXPECT_FALSE(errors.diagnostics().empty());
  }
}

INSTANTIATE_TEST_SUITE_P(All, WrongFile, testing::ValuesIn(wrong_files()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return "File_" + name;
});

TEST(WrongFiles, AreAtLeastThirty) {
  EXPECT_GE(wrong_files().size(), 30u);
}

}  // namespace
}  // namespace dtrain::config
