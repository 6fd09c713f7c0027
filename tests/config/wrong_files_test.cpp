// Every case of wrong/ and of wrong_cluster/ is refused with exactly its errors.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <span>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/choices.h"
#include "dtrain/base/text.h"
#include "dtrain/config/cluster.h"
#include "dtrain/config/experiment.h"

#include "temporary_file.h"
#include "wrong_cases.h"

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
      {"backend", dtrain::words_of<comm::Backend>()},
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

std::string test_name(const testing::TestParamInfo<WrongCase>& info) {
  std::string name = info.param.topic + "_" + info.param.title;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char letter) { return std::isalnum(letter) == 0; }, '_');
  return name;
}

class WrongFile : public testing::TestWithParam<WrongCase> {
 protected:
  // Errors name a file as it was given: a relative name keeps the expectations free of folders.
  template <typename Read>
  void expect_errors(const std::string& name, const Read& read) {
    const TemporaryFile file(GetParam().text, name);
    std::filesystem::current_path(file.path().parent_path());
    const std::string expected = with_lists(GetParam().errors);
    try {
      read(name);
      ADD_FAILURE() << "was accepted; expected:\n" << expected;
    } catch (const ConfigErrors& errors) {
      EXPECT_EQ(std::string(errors.what()) + "\n", expected);
      EXPECT_FALSE(errors.diagnostics().empty());
    }
    std::filesystem::current_path(kFolder);
  }
};

class WrongExperiment : public WrongFile {};
TEST_P(WrongExperiment, GivesExactlyTheExpectedErrors) {
  expect_errors("experiment.yaml", [](const std::string& file) { read_experiment(file); });
}
INSTANTIATE_TEST_SUITE_P(All, WrongExperiment, testing::ValuesIn(read_wrong_cases(kFolder / "wrong").cases), test_name);

class WrongCluster : public WrongFile {};
TEST_P(WrongCluster, GivesExactlyTheExpectedErrors) {
  expect_errors("cluster.yaml", [](const std::string& file) { read_cluster(file); });
}
INSTANTIATE_TEST_SUITE_P(All, WrongCluster, testing::ValuesIn(read_wrong_cases(kFolder / "wrong_cluster").cases),
                         test_name);

class WrongFolder : public testing::TestWithParam<std::string> {};
TEST_P(WrongFolder, HoldsOnlyWellFormedDocumentsOfCases) {
  EXPECT_THAT(read_wrong_cases(kFolder / GetParam()).problems, testing::IsEmpty());
}
INSTANTIATE_TEST_SUITE_P(All, WrongFolder, testing::Values("wrong", "wrong_cluster"));

TEST(WrongFiles, AreManyOfEachKind) {
  EXPECT_GE(read_wrong_cases(kFolder / "wrong").cases.size(), 75u);
  EXPECT_GE(read_wrong_cases(kFolder / "wrong_cluster").cases.size(), 19u);
}

TEST(WrongCases, NameWhatIsNoCaseOfADocument) {
  const TemporaryFile document(
      "# Comments.\nstray\n\n=== a\nx: {byte e9}{byte 09}\n=== errors\nno\n\nlost\n=== b\n=== a\n=== errors\nno\n",
      "keys.txt");
  const auto folder = document.path().parent_path();
  std::ofstream(folder / "77-new.yaml") << "name: 1\n";
  std::ofstream(folder / "77-new.expected") << "no\n";
  const WrongCases found = read_wrong_cases(folder);
  const std::string prefix = folder.filename().string() + "/";
  const std::string stray = ": is no document of cases; make it a case of a .txt beside it (CONTRIBUTING.md)";
  EXPECT_THAT(found.problems,
              testing::UnorderedElementsAre(
                  prefix + "77-new.yaml" + stray, prefix + "77-new.expected" + stray,
                  prefix + "keys.txt:2: 'stray' belongs to no case; a case begins with '=== TITLE'",
                  prefix + "keys.txt:9: 'lost' belongs to no case; a case begins with '=== TITLE'",
                  prefix + "keys.txt:11: the case 'b' before this line has no '=== errors', or none follow",
                  prefix + "keys.txt:11: a second case 'a'"));
  ASSERT_EQ(found.cases.size(), 3u);
  EXPECT_EQ(found.cases[0].topic, "keys");
  EXPECT_EQ(found.cases[0].text, "x: \xe9\t\n");
  EXPECT_EQ(found.cases[0].errors, "no\n");
}

}  // namespace
}  // namespace dtrain::config
