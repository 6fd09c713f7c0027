// dtrain runs and the report of several runs, on the folders of runs that never were.
#include <gmock/gmock.h>

#include "cli_harness.h"

namespace dtrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct MadeRun {
  double lr = 0.1;
  std::vector<double> accuracies;  // of validations after 100, 200, … batches
  std::string end = "done";        // empty: no event says that it has ended
  int seconds = 100;               // of its one attempt
  std::string more;                // of the experiment: ,"key":value
};

class RunsCommand : public testing::Test {
 protected:
  void write(const std::string& folder, const MadeRun& made) {
    const auto path = folder_.path() / folder;
    std::filesystem::create_directories(path);
    std::ofstream(path / "experiment.yaml") << "name: net\n";
    std::ofstream(path / "plan.json") << fmt::format(
        R"({{"name":"net","world_size":1,"experiment":{{"name":"net","optimizer":{{"lr":{}}},)"
        R"("searcher":{{"metric":"accuracy","smaller_is_better":false}}{}}}}})",
        made.lr, made.more);
    std::ofstream events(path / "events.jsonl");
    events << R"({"time":"2026-03-01T12:00:00Z","event":"run_started"})"
              "\n"
              R"({"time":"2026-03-01T12:00:00Z","event":"attempt_started","attempt":1})"
              "\n";
    if (!made.end.empty()) {
      events << fmt::format(R"({{"time":"2026-03-01T12:{:02}:{:02}Z","event":"run_ended","state":"{}"}})"
                            "\n",
                            made.seconds / 60, made.seconds % 60, made.end);
    }
    std::ofstream metrics(path / "metrics.jsonl");
    for (std::size_t i = 0; i < made.accuracies.size(); ++i) {
      metrics << fmt::format(
          R"({{"time":"2026-03-01T12:00:{0}0Z","kind":"training","batch":{0}00,"samples":640,"metrics":{{"loss":{1}}}}})"
          "\n"
          R"({{"time":"2026-03-01T12:00:{0}0Z","kind":"validation","batch":{0}00,"metrics":{{"accuracy":{2}}}}})"
          "\n",
          i + 1, 1 - made.accuracies[i], made.accuracies[i]);
    }
  }
  Result dtrain(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), bin("dtrain"));
    Command command(folder_.path(), arguments);
    const int code = command.wait().code;
    return {code, command.out(), command.err()};
  }
  // The runs of the list, in its order.
  std::vector<int> listed(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "runs");
    arguments.emplace_back("--json");
    const Result result = dtrain(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    std::vector<int> runs;
    for (const Json& run : Json::parse(result.out)) runs.push_back(run["run"].is_null() ? -1 : run["run"].get<int>());
    return runs;
  }
  void write_three() {
    write("runs/0001-net", {.lr = 0.1, .accuracies = {0.5, 0.9, 0.8}, .seconds = 90});
    write("runs/0002-net", {.lr = 0.01, .accuracies = {0.25, 0.75}, .end = "failed"});
    write("runs/0010-net", {.lr = 0.001, .accuracies = {}, .seconds = 5});
  }

  TemporaryFolder folder_;
};

TEST_F(RunsCommand, ATableOfTheRuns) {
  EXPECT_EQ(dtrain({"runs"}).out, "no runs\n");
  write_three();
  const Result result = dtrain({"runs"});
  EXPECT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  std::vector<std::string> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(line);
  ASSERT_EQ(rows.size(), 4u) << result.out;
  EXPECT_THAT(rows[0], testing::MatchesRegex("run +name +state +batches +loss +metric +best +last +samples/s +duration "
                                             "+differs"))
      << "no column of attempts, where each run has one";
  EXPECT_THAT(rows[1], testing::MatchesRegex(" *1 +net +done +300 +0.2 +accuracy +0.9 +0.8 +64.0 +1 min 30 s +lr=0.1"));
  EXPECT_THAT(rows[2], HasSubstr("failed"));
  EXPECT_THAT(rows[3], HasSubstr("lr=0.001"));
}

TEST_F(RunsCommand, JsonAndCsvHaveAllOfIt) {
  write_three();
  const Json runs = Json::parse(dtrain({"runs", "--json"}).out);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0]["best_metric"], Json({{"value", 0.9}, {"batch", 200}}));
  EXPECT_EQ(runs[0]["last_metric"], Json({{"value", 0.8}, {"batch", 300}}));
  EXPECT_EQ(runs[0]["samples_per_s"], 64);
  EXPECT_EQ(runs[0]["duration_s"], 90);
  EXPECT_EQ(runs[0]["attempts"], 1);
  EXPECT_EQ(runs[0]["differs"], Json({{"optimizer.lr", "0.1"}}));
  EXPECT_EQ(runs[2]["best_metric"], Json());
  EXPECT_EQ(runs[2]["loss"], Json());

  std::istringstream csv(dtrain({"runs", "--csv"}).out);
  std::string head, first;
  std::getline(csv, head);
  std::getline(csv, first);
  EXPECT_EQ(head,
            "run,name,state,attempts,batches,loss,metric,best,best_batch,last,last_batch,samples_per_s,duration_s,"
            "started,folder,damage,optimizer.lr");
  EXPECT_THAT(first, testing::StartsWith("1,net,done,1,300,0.19999999999999996,accuracy,0.9,200,0.8,300,64,90,2026-"));
  EXPECT_THAT(first, testing::EndsWith("/runs/0001-net,,0.1"));
}

TEST_F(RunsCommand, TheyAreSorted) {
  write_three();
  EXPECT_THAT(listed({}), ElementsAre(1, 2, 10));
  EXPECT_THAT(listed({"--reverse"}), ElementsAre(10, 2, 1));
  EXPECT_THAT(listed({"--sort", "best"}), ElementsAre(1, 2, 10)) << "the best first, those without a value last";
  EXPECT_THAT(listed({"--sort", "best", "--reverse"}), ElementsAre(2, 1, 10));
  EXPECT_THAT(listed({"--sort", "lr"}), ElementsAre(10, 2, 1)) << "by number, not by text";
  EXPECT_THAT(listed({"--sort", "duration"}), ElementsAre(10, 1, 2));
  write("runs/0011-net", {.accuracies = {0.3}, .more = R"(,"hyperparameters":{"width":8})"});
  EXPECT_THAT(listed({"--sort", "hyperparameters.width"}), ElementsAre(11, 1, 2, 10));
}

TEST_F(RunsCommand, TheyAreFiltered) {
  write_three();
  EXPECT_THAT(listed({"--filter", "state=done"}), ElementsAre(1, 10));
  EXPECT_THAT(listed({"--filter", "state!=done"}), ElementsAre(2));
  EXPECT_THAT(listed({"--filter", "best>0.8"}), ElementsAre(1));
  EXPECT_THAT(listed({"--filter", "best<=0.75"}), ElementsAre(2));
  EXPECT_THAT(listed({"--filter", "optimizer.lr<0.05", "--filter", "state~don"}), ElementsAre(10));
  EXPECT_THAT(listed({"--filter", "lr=1e-2"}), ElementsAre(2)) << "numbers are compared as numbers";
  EXPECT_THAT(listed({"--filter", "name=other"}), ElementsAre());
}

TEST_F(RunsCommand, OfAnyFolderAndOfRunsWithoutANumber) {
  write("here/b", {.accuracies = {0.5}});
  write("here/a", {.accuracies = {0.5}});
  write("here/0003-c", {.accuracies = {0.5}});
  std::filesystem::create_directories(folder_.path() / "here" / "configs");
  for (const char* file : {"here/experiment.yaml", "here/configs/experiment.yaml"}) {
    std::ofstream(folder_.path() / file) << "name: net\n";
  }
  EXPECT_THAT(listed({"here"}), ElementsAre(3, -1, -1));
  const Result table = dtrain({"runs", "here"});
  EXPECT_LT(table.out.find("\na "), table.out.find("\nb "));
  EXPECT_THAT(table.out, Not(HasSubstr("differs")));
}

TEST_F(RunsCommand, ARunOfWhichNothingIsLeftIsGone) {
  write("runs/0001-net", {.accuracies = {0.5}, .end = ""});
  EXPECT_EQ(Json::parse(dtrain({"runs", "--json"}).out)[0]["state"], "running") << "its files have just been written";
  for (const char* file : {"events.jsonl", "metrics.jsonl"}) {
    const auto path = folder_.path() / "runs/0001-net" / file;
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::minutes(1));
  }
  const Json gone = Json::parse(dtrain({"runs", "--json"}).out)[0];
  EXPECT_EQ(gone["state"], "gone");
  EXPECT_EQ(gone["duration_s"], 0) << "to its last event";
}

TEST_F(RunsCommand, WrongUseIsExitCode2) {
  write_three();
  const auto error = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "runs");
    const Result result = dtrain(arguments);
    EXPECT_EQ(result.code, 2) << testing::PrintToString(arguments);
    return result.err;
  };
  EXPECT_THAT(error({"nowhere"}), HasSubstr("there is no such folder"));
  EXPECT_THAT(error({"runs/0001-net"}), HasSubstr("name the folder above it"));
  EXPECT_THAT(error({"--sort", "bset"}), HasSubstr("did you mean best?"));
  EXPECT_THAT(error({"--filter", "optimizer.rl=1"}), HasSubstr("did you mean optimizer.lr?"));
  EXPECT_THAT(error({"--filter", "done"}), HasSubstr("no comparison"));
  EXPECT_THAT(error({"--filter", "!x"}), HasSubstr("no key"));
  EXPECT_THAT(error({"--filter", "best>good"}), HasSubstr("which is no number"));
  error({"--json", "--csv"});
}

TEST_F(RunsCommand, AReportOfSeveralRunsIsOnePage) {
  write_three();
  const Result report = dtrain({"report", "1", "2", "10"});
  EXPECT_EQ(report.code, 0) << report.err;
  EXPECT_EQ(report.out, "report.html\n");
  std::ifstream file(folder_.path() / "report.html");
  const std::string html(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(html, HasSubstr("<h1>3 runs</h1>"));
  EXPECT_THAT(html, HasSubstr("No metrics have been written by 0010-net."));
  EXPECT_THAT(html, HasSubstr("optimizer.lr</th>"));
  EXPECT_THAT(html, HasSubstr("accuracy (validation)"));
  const Result twice = dtrain({"report", "1", "runs/0001-net"});
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.err, HasSubstr("named twice"));
  EXPECT_EQ(dtrain({"report", "1", "2", "-o", "both.html"}).out, "both.html\n");
  EXPECT_EQ(dtrain({"report"}).code, 2);
}

}  // namespace
}  // namespace dtrain
