// dtrain diff, on the folders of runs that never were.
#include <gmock/gmock.h>

#include "cli_harness.h"
#include "dtrain/profile/records.h"
#include "harness/synthetic_run.h"

namespace dtrain {
namespace {

using testing::HasSubstr;

class DiffCommand : public testing::Test {
 protected:
  void write(const std::string& name, double longer_ms, std::int64_t steps = 300) {
    test::SyntheticRun run;
    run.name = name;
    run.steps = steps;
    run.seed = ++seed_;
    run.change = [longer_ms](int, std::int64_t, test::SyntheticStep& step) {
      step.own_ns[static_cast<std::size_t>(profile::Phase::kBackward)] += std::llround(longer_ms * 1e6);
    };
    test::write_synthetic_run(folder_.path() / name, run);
    std::ofstream(folder_.path() / name / "experiment.yaml") << "name: " << name << "\n";  // what makes it a run
  }
  Result diff(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {bin("dtrain"), "diff"});
    Command command(folder_.path(), arguments);
    const int code = command.wait().code;
    return {code, command.out(), command.err()};
  }

  TemporaryFolder folder_;
  std::uint64_t seed_ = 0;
};

TEST_F(DiffCommand, ARegressionIsExitCode3) {
  write("before", 0);
  write("after", 1);  // 9% of a step
  const Result slower = diff({"before", "after", "--fail-above", "5%"});
  EXPECT_EQ(slower.code, 3) << slower.err;
  EXPECT_THAT(slower.out, HasSubstr("B is slower"));
  EXPECT_THAT(slower.out, HasSubstr("a regression: more than 5.0%"));
  EXPECT_EQ(diff({"before", "after", "--fail-above", "12"}).code, 0) << "not by so much";
  EXPECT_EQ(diff({"before", "after"}).code, 0) << "nobody asked";
  EXPECT_EQ(diff({"after", "before", "--fail-above", "5%"}).code, 0) << "it got faster";
}

TEST_F(DiffCommand, JsonIsAllThatGoesToStandardOutput) {
  write("before", 0);
  write("after", 1);
  const Result result = diff({"before", "after", "--json", "--fail-above", "5%"});
  EXPECT_EQ(result.code, 3);
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json.at("verdict"), "worse");
  EXPECT_EQ(json.at("regression"), true);
  EXPECT_NEAR(json.at("step").at("change").get<double>(), 1 / 10.9, 0.01);
  EXPECT_EQ(json.at("a").at("name"), "before");
}

TEST_F(DiffCommand, WrongUseIsExitCode2) {
  write("before", 0);
  write("brief", 0, 20);
  const Result missing = diff({"before", "afetr"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("B: "));
  EXPECT_THAT(missing.err, HasSubstr("afetr"));
  const Result same = diff({"before", "./before/"});
  EXPECT_EQ(same.code, 2);
  EXPECT_THAT(same.err, HasSubstr("the same run"));
  EXPECT_EQ(diff({"before"}).code, 2);
  for (const std::string wrong : {"fast", "0", "-5%", "5 %", "%", "", "2000", "nan"}) {
    const Result result = diff({"before", "brief", "--fail-above", wrong});
    EXPECT_EQ(result.code, 2) << "'" << wrong << "'";
    EXPECT_THAT(result.err, HasSubstr("--fail-above")) << wrong;
  }
  const Result brief = diff({"before", "brief", "--fail-above", "5%"});
  EXPECT_EQ(brief.code, 2);
  EXPECT_THAT(brief.err, HasSubstr("too few to distinguish a regression from noise"));
  EXPECT_EQ(diff({"before", "brief"}).code, 0) << "said, and no error";
}

TEST_F(DiffCommand, ARunWithoutStepsIsAnError) {
  write("before", 0);
  fs::create_directories(folder_.path() / "empty" / "profile");
  std::ofstream(folder_.path() / "empty" / "experiment.yaml") << "name: empty\n";
  const Result result = diff({"before", "empty"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("no batches were recorded"));
  EXPECT_EQ(result.out, "");
}

TEST_F(DiffCommand, HelpTeaches) {
  const Result help = diff({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* part : {"--fail-above", "exit codes", "for example:", "warm-up", "docs/diff.md"}) {
    EXPECT_THAT(help.out, HasSubstr(part));
  }
}

}  // namespace
}  // namespace dtrain
