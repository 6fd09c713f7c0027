// `dtrain launch --mock` and `dtrain what-if --verify`, with ranks that need no torch.
#include <gmock/gmock.h>

#include "cli_harness.h"

namespace dtrain {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

Json what_if(const TestRun& run, const std::vector<std::string>& options) {
  std::vector<std::string> command{"what-if", "./run", "--verify", "--rounds", "1", "--json"};
  command.insert(command.end(), options.begin(), options.end());
  const Result result = dtrain(run, command);
  EXPECT_EQ(result.code, 0) << result.err;
  return result.code == 0 ? Json::parse(result.out) : Json::object();
}

TEST(Mock, ReachesTheRanksAndMarksTheRun) {
  TestRun run;
  Command launch = run.launch({"--mock", "comm"});
  EXPECT_EQ(launch.wait().code, 0) << launch.err();
  EXPECT_THAT(launch.err(),
              HasSubstr("warning: mock run (comm): gradients are not exchanged; its weights mean nothing"));
  EXPECT_THAT(slurp(run.run_dir() / "profile" / "rank-0001.jsonl"), Not(HasSubstr("\"collective\"")));
  const Json plan = read_json(run.run_dir() / "plan.json");
  EXPECT_EQ(plan.at("mock").at("what"), "comm");
  EXPECT_EQ(plan.at("command").at(plan.at("command").size() - 1), "comm");
  for (const char* command : {"summary", "analyze", "what-if"}) {
    EXPECT_THAT(dtrain(run, {command, "./run"}).out, HasSubstr("mock run (comm)")) << command;
  }
  EXPECT_EQ(Json::parse(dtrain(run, {"summary", "./run", "--json"}).out).at("mock"),
            "mock run (comm): gradients are not exchanged; its weights mean nothing");
}

TEST(Mock, APlanSaysSoAndStartsNothing) {
  const TestRun run;
  const Result dry = dtrain(run, {"launch", run.experiment(), "--dry-run", "--mock", "loader", "--mock=comm"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_THAT(dry.out, HasSubstr("mock        loader,comm\n"));
  const Result plain = dtrain(run, {"launch", run.experiment(), "--dry-run", "--json"});
  EXPECT_FALSE(Json::parse(plain.out).contains("mock"));
}

TEST(Mock, WordsThatMakeNoSenseAreRefused) {
  const TestRun run({.slots = 1});
  const auto refused = [&](const std::string& words) {
    const Result result = dtrain(run, {"launch", run.experiment(), "--mock", words, "--run-dir", "made"});
    EXPECT_EQ(result.code, 2) << words;
    EXPECT_FALSE(fs::exists(run.folder() / "made"));
    return result.err;
  };
  EXPECT_THAT(refused("network"),
              HasSubstr("there is no 'network'\n  it is one of loader, train, comm, or loader,comm"));
  EXPECT_THAT(refused("train,loader"), HasSubstr("it cannot be combined"));
  EXPECT_THAT(refused("comm"), HasSubstr("a run with one rank has no exchange to leave out"));
}

TEST(Mock, RanksThatDriftApartAreWaitedForLongerThanATimeout) {
  TestRun run({.hyperparameters = "trouble: {rank: 1, batch: 7, kind: late}", .more = "communication: {timeout: 3}\n"});
  const Result result = dtrain(run, {"launch", run.experiment(), "--run-dir", run.run_dir(), "--mock", "comm"});
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST(Mock, RanksThatWereToldDifferentThingsDoNotStart) {
  TestRun run;
  const std::map<std::string, std::string> place{
      {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(20000 + ::getpid() % 20000)}};
  const auto start = [&](int rank, const std::vector<std::string>& options) {
    auto variables = place;
    variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
    variables["LOCAL_WORLD_SIZE"] = "2";
    std::vector<std::string> command{rank_program(), run.experiment().string(), "--run-dir", run.run_dir().string()};
    command.insert(command.end(), options.begin(), options.end());
    fs::create_directories(run.folder() / std::to_string(rank));
    variables["XDG_RUNTIME_DIR"] = run.folder().string();
    return Command(run.folder() / std::to_string(rank), command, variables);
  };
  Command first = start(0, {});
  Command second = start(1, {"--mock", "comm"});
  EXPECT_NE(first.wait().code, 0);
  EXPECT_NE(second.wait().code, 0);
  EXPECT_THAT(first.err(), HasSubstr("rank 1 was given another experiment than rank 0"));
  EXPECT_THAT(first.err(), HasSubstr("the same --mock"));
}

TEST(Verify, PutsPredictionsBesideMockRuns) {
  TestRun run({.batches = 20});
  ASSERT_EQ(run.launch({"--set", "hyperparameters.step_ms=4"}).wait().code, 0);
  const Json answer = what_if(run, {"--steps", "20"});
  ASSERT_EQ(answer.at("predictions").size(), 4u);
  for (const Json& one : answer["predictions"]) {
    EXPECT_GT(one.at("plain_ms"), 4.0);
    EXPECT_GT(one.at("measured_ms"), one.at("mock") == "train" ? 0.0 : 4.0) << one;
  }
  const Json& comm = answer["predictions"][1];
  EXPECT_EQ(comm.at("name"), "free_network");
  EXPECT_GT(comm.at("predicted_ms"), 0.0);
  EXPECT_THAT(comm.at("ratios").get<std::vector<double>>(),
              Contains(comm.at("ratio").get<double>()));  // of an odd number of rounds
  const Json& train = answer["predictions"][3];
  EXPECT_TRUE(train.at("predicted_ms").is_null()) << "these ranks have no loader that tells what a batch takes";
  EXPECT_TRUE(train.at("ratio").is_null());
  EXPECT_THAT(answer.at("notes").dump(), HasSubstr("the loader's limit is not predicted"));

  const fs::path kept = run.run_dir() / "what-if" / "1";
  EXPECT_EQ(answer.at("folder"), kept.string());
  const Json plan = read_json(kept / "4-mock-comm" / "plan.json");
  EXPECT_EQ(plan.at("mock").at("what"), "comm");
  EXPECT_EQ(plan.at("experiment").at("hyperparameters").at("step_ms"), 4) << "as the run was launched";
  EXPECT_FALSE(read_json(kept / "9-plain" / "plan.json").contains("mock"));
  EXPECT_FALSE(fs::exists(run.folder() / "runs")) << "they take no number";
}

TEST(Verify, OneRankHasNothingToExchange) {
  TestRun run({.slots = 1, .batches = 20});
  ASSERT_EQ(run.launch().wait().code, 0);
  const Result text = dtrain(run, {"what-if", "./run", "--verify", "--rounds", "1", "--steps", "20"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.err, HasSubstr("dtrain: 5 of 5: plain"));
  EXPECT_THAT(text.out, HasSubstr("\n  loader "));
  EXPECT_THAT(text.out, HasSubstr("\n  train "));
  EXPECT_THAT(text.out, Not(HasSubstr("\n  comm ")));
  const Json again =
      Json::parse(dtrain(run, {"what-if", "./run", "--verify", "--rounds", "2", "--steps", "20", "--json"}).out);
  EXPECT_EQ(again.at("folder"), (run.run_dir() / "what-if" / "2").string());
  EXPECT_EQ(again.at("predictions").at(0).at("ratios").size(), 2u) << "one a round";
  EXPECT_TRUE(fs::exists(run.run_dir() / "what-if" / "2" / "9-plain" / "plan.json"));
}

TEST(Verify, CtrlCEndsTheRunUnderWay) {
  TestRun run({.batches = 20});
  ASSERT_EQ(run.launch().wait().code, 0);
  fs::create_directories(run.folder() / "verify");
  Command verify(run.folder() / "verify", {bin("dtrain"), "what-if", run.run_dir(), "--verify", "--steps", "10000"});
  const fs::path first = run.run_dir() / "what-if" / "1" / "1-plain";
  ASSERT_TRUE(eventually([&] { return count_of(slurp(first / "logs" / "rank-0000.log"), "batch ") > 3; }))
      << verify.err();
  verify.kill(SIGINT);
  EXPECT_EQ(verify.wait().code, 130);
  EXPECT_THAT(verify.err(), HasSubstr("interrupted"));
  EXPECT_THAT(slurp(first / "logs" / "rank-0001.log"), HasSubstr("leaving"));
  for (const Json& event : read_lines(first / "events.jsonl")) {
    if (!event.contains("pid")) continue;
    EXPECT_FALSE(is_alive(event["pid"].get<pid_t>())) << event;
  }
  EXPECT_FALSE(fs::exists(run.run_dir() / "what-if" / "1" / "2-mock-loader"));
}

TEST(Verify, AFailingRunIsToldWithWhatItSaid) {
  TestRun run({.batches = 20});
  ASSERT_EQ(run.launch({"--set", "hyperparameters.trouble={batch: 30, kind: exception}"}).wait().code, 0);
  const Result result = dtrain(run, {"what-if", "./run", "--verify", "--rounds", "1", "--steps", "40"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("what-if/1/1-plain failed (exit status 1)"));
  EXPECT_THAT(result.err, HasSubstr("the model makes no sense"));
}

TEST(Verify, NeedsTheRunAsItWasLaunched) {
  TestRun run({.batches = 5});
  const auto refused = [&](const std::string& run_dir) {
    const Result result = dtrain(run, {"what-if", run_dir, "--verify", "--rounds", "1", "--steps", "20"});
    EXPECT_EQ(result.code, 2) << result.out;
    return result.err;
  };
  ASSERT_EQ(run.launch({"--mock", "loader"}).wait().code, 0);
  EXPECT_THAT(refused("./run"), HasSubstr("is a mock run (loader) itself"));
  Command alone(run.folder(), {rank_program(), run.experiment(), "--run-dir", run.folder() / "alone"});
  ASSERT_EQ(alone.wait().code, 0);
  EXPECT_THAT(refused("./alone"), HasSubstr("was started by nothing"));
  ASSERT_EQ(dtrain(run, {"launch", run.experiment(), "--run-dir", "plain"}).code, 0);
  std::ofstream(run.experiment(), std::ios::app) << "# another\n";
  EXPECT_THAT(refused("./plain"), HasSubstr("has changed since"));
  fs::remove(run.experiment());
  EXPECT_THAT(refused("./plain"), HasSubstr("its experiment file does not exist here"));
  EXPECT_EQ(dtrain(run, {"what-if", "./plain", "--steps", "20"}).code, 2) << "without --verify";
  EXPECT_EQ(dtrain(run, {"what-if", "./plain", "--verify", "--steps", "3"}).code, 2);
}

}  // namespace
}  // namespace dtrain
