// Every file of wrong/ and of wrong_cluster/ has its exact errors beside it.
#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dtrain/base/choices.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/config/cluster.h"
#include "dtrain/config/experiment.h"

namespace dtrain::config {
namespace {

const std::filesystem::path kFolder = DTRAIN_SOURCE_DIR "/tests/config";

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

// Expected errors name lists that grow: "{any codec}" stands for "fp16, bf16 or topk", "{each codec}" for "fp16, bf16,
// topk".
std::string with_lists(std::string text) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> lists{
      {"codec", dtrain::words_of<comm::Compression>()},
      {"optimizer", dtrain::words_of<Optimizer>()},
      {"loss", dtrain::words_of<Loss>()},
      {"format", dtrain::words_of<data::Format>()}};
  for (const auto& [name, words] : lists) {
    replace_all(text, "{each " + name + "}", join(words, ", "));
    replace_all(text, "{any " + name + "}",
                join(std::span(words).first(words.size() - 1), ", ") + " or " + words.back());
  }
  return text;
}

// "wrong/01-unknown-key"
std::vector<std::string> wrong_files(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder / folder)) {
    if (entry.path().extension() == ".yaml") names.push_back(folder + "/" + entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param.substr(info.param.find('/') + 1);
  std::replace(name.begin(), name.end(), '-', '_');
  return "File_" + name;
}

class WrongFile : public testing::TestWithParam<std::string> {
 protected:
  // Errors name a file as it was given: relative names keep the expectations free of folders.
  template <typename Read>
  void expect_errors(const Read& read) {
    const std::filesystem::path file = kFolder / GetParam();
    std::filesystem::current_path(file.parent_path());
    const std::string expected = with_lists(read_file(file.filename().string() + ".expected"));
    try {
      read(file.filename().string() + ".yaml");
      FAIL() << "was accepted; expected:\n" << expected;
    } catch (const ConfigErrors& errors) {
      EXPECT_EQ(std::string(errors.what()) + "\n", expected);
      EXPECT_FALSE(errors.diagnostics().empty());
    }
  }
};

class WrongExperiment : public WrongFile {};
TEST_P(WrongExperiment, GivesExactlyTheExpectedErrors) {
  expect_errors([](const std::string& file) { read_experiment(file); });
}
INSTANTIATE_TEST_SUITE_P(All, WrongExperiment, testing::ValuesIn(wrong_files("wrong")), test_name);

class WrongCluster : public WrongFile {};
TEST_P(WrongCluster, GivesExactlyTheExpectedErrors) {
  expect_errors([](const std::string& file) { read_cluster(file); });
}
INSTANTIATE_TEST_SUITE_P(All, WrongCluster, testing::ValuesIn(wrong_files("wrong_cluster")), test_name);

TEST(WrongFiles, AreManyOfEachKind) {
  EXPECT_GE(wrong_files("wrong").size(), 50u);
  EXPECT_GE(wrong_files("wrong_cluster").size(), 19u);
}

}  // namespace
}  // namespace dtrain::config
