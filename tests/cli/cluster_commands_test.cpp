// The command line where a cluster is concerned: lists, placement, refusals.
#include <gmock/gmock.h>

#include "cli_harness.h"
#include "harness/fake_gpus.h"

namespace dtrain {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Lists, SlotsOfThisMachine) {
  const TestRun run;
  const Result json = dtrain(run, {"slot", "list", "--json"});
  EXPECT_EQ(json.code, 0) << json.err;
  const Json slots = Json::parse(json.out);
  ASSERT_GE(slots.size(), 1u);
  const Result text = dtrain(run, {"slot", "list"});
  EXPECT_THAT(text.out, StartsWith("cluster: this machine; an experiment divides its cores among its slots "
                                   "(resources.cores_per_slot)\nagent"));
  EXPECT_EQ(slots.at(0).at("slot"), nullptr) << "no file says how many there are";
  EXPECT_EQ(slots.at(0).at("core"), 0);
  EXPECT_EQ(count_of(text.out, "\n"), static_cast<int>(slots.size()) + 2);
  const Result csv = dtrain(run, {"slot", "list", "--csv"});
  EXPECT_THAT(csv.out, StartsWith("agent,slot,core,task,slot_type,cpus,node,gpu,uuid,name,memory_bytes,health\n"));
  EXPECT_EQ(count_of(csv.out, "\n"), static_cast<int>(slots.size()) + 1);
  const Json agents = Json::parse(dtrain(run, {"agent", "list", "--json"}).out);
  EXPECT_EQ(agents.at(0).at("slots"), nullptr);
  EXPECT_EQ(agents.at(0).at("cores"), slots.size());
  EXPECT_EQ(agents.at(0).at("free"), slots.size());
  EXPECT_EQ(dtrain(run, {"slot", "list", "--csv", "--json"}).code, 2);
  EXPECT_EQ(dtrain(run, {"slot"}).code, 2);
}

TEST(Lists, GpusAreAskedWhatTheyAre) {
  const TestRun run;
  const harness::FakeGpus gpus(run.folder());  // found as any library is, by its name
  Json two = harness::FakeGpus::two();
  two["gpus"][1]["rows"] = "failed";
  gpus.describe(two);
  const std::map<std::string, std::string> environment{{"LD_LIBRARY_PATH", run.folder()}};
  const Result json = dtrain(run, {"slot", "list", "--json"}, environment);
  EXPECT_EQ(json.code, 0) << json.err;
  EXPECT_THAT(json.err, HasSubstr("warning: GPU 1 is no slot: rows of its memory could not be remapped"));
  const Json slots = Json::parse(json.out);
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots[0].at("slot_type"), "cuda");
  EXPECT_EQ(slots[0].at("uuid"), "GPU-aaaa");
  EXPECT_EQ(slots[0].at("memory_bytes"), 16'000'000'000);
  EXPECT_EQ(slots[0].at("health"), "ok");
  EXPECT_EQ(slots[1].at("slot"), nullptr);
  EXPECT_THAT(slots[1].at("health").get<std::string>(), HasSubstr("needs repair"));
  EXPECT_THAT(dtrain(run, {"slot", "list"}, environment).out, HasSubstr("14.9 GiB"));
  const Json agents = Json::parse(dtrain(run, {"agent", "list", "--json"}, environment).out);
  EXPECT_EQ(agents.at(0).at("slots"), 1);
}

TEST(Launch, SaysWhichRulesOfGpusHaveNoEffectOnCpus) {
  const TestRun run({.slots = 1, .batches = 2});
  const std::string warning =
      "profiling.rules.LoadBalancing and profiling.rules.GPUTemperature have no effect: the trial runs on CPUs";
  const std::vector<std::string> set{"--set", "profiling.rules.GPUTemperature.margin=3",
                                     "--set", "profiling.rules.LoadBalancing.threshold=0.5",
                                     "--set", "profiling.rules.GPUMemoryFull.threshold=95",  // the default
                                     "--set", "profiling.rules.IOBottleneck.gpu_threshold=20"};
  std::vector<std::string> words{"launch", run.experiment(), "--run-dir", run.run_dir()};
  words.insert(words.end(), set.begin(), set.end());
  const Result launched = dtrain(run, words);
  EXPECT_EQ(launched.code, 0) << launched.err;
  EXPECT_EQ(count_of(launched.out + launched.err, warning), 1) << launched.out << launched.err;
  EXPECT_THAT(launched.err, HasSubstr("dtrain: warning: " + warning));
  EXPECT_THAT(read_json(run.run_dir() / "plan.json").at("warnings").dump(), HasSubstr(warning));
  EXPECT_THAT(dtrain(run, {"launch", run.experiment(), "--dry-run"}).err, Not(HasSubstr("profiling.rules")));

  // A rank without a launcher writes it to its own log.
  fs::create_directories(run.folder() / "alone");
  std::vector<std::string> rank{rank_program(), run.experiment(), "--run-dir", run.folder() / "alone" / "run"};
  rank.insert(rank.end(), set.begin(), set.end());
  Command alone(run.folder() / "alone", rank);
  EXPECT_EQ(alone.wait().code, 0) << alone.err();
  EXPECT_EQ(count_of(alone.out() + alone.err(), warning), 1) << alone.out() << alone.err();
}

TEST(Lists, AgentsOfAClusterFile) {
  const TestRun run;
  const std::string file = run.folder() / "mine.yaml";
  std::ofstream(file)
      << "agents: [{id: a, host: node-a, slots: 8, resource_pool: \"x, y\"}, {id: b, host: localhost, slots: 1}]\n";
  const Result csv = dtrain(run, {"agent", "list", "--cluster", file, "--csv"});
  EXPECT_EQ(csv.out,
            "id,host,slots,cores,free,slot_type,resource_pool,here\na,node-a,8,,8,auto,\"x, y\",no\n"
            "b,localhost,1,,1,cpu,default,yes\n");
  const Result text = dtrain(run, {"agent", "list"}, {{"DTRAIN_CLUSTER", file}});
  EXPECT_THAT(text.out, HasSubstr("a   node-a         8     8  auto       x, y           no\n"));
  const Result wrong = dtrain(run, {"agent", "list", "--cluster", "none.yaml"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.out, "");
}

TEST(Lists, WhoHoldsASlotIsShown) {
  TestRun run({.batches = 100'000});
  std::ofstream(run.folder() / "cluster.yaml")
      << "agents: [{id: a, host: localhost, slots: 3}, {id: b, host: elsewhere, slots: 1}]\n";
  Command launch = run.launch();
  ASSERT_TRUE(run.reached(1, 1)) << launch.err();
  // In a folder of its own, so that the two outputs stay apart.
  const auto list = [&](const std::string& what) {
    const fs::path folder = run.folder() / what;
    fs::create_directory(folder);
    Command command(folder, {bin("dtrain"), what, "list", "--json", "--cluster", run.folder() / "cluster.yaml"},
                    {{"DTRAIN_STATE_DIR", (run.folder() / "state").string()}});
    EXPECT_EQ(command.wait().code, 0) << command.err();
    return Json::parse(command.out());
  };
  const Json agents = list("agent");
  EXPECT_EQ(agents.at(0).at("free"), 1);
  EXPECT_EQ(agents.at(1).at("free"), 1);
  const Json slots = list("slot");
  EXPECT_EQ(slots.at(0).at("task"), 1);
  EXPECT_EQ(slots.at(1).at("task"), 1);
  EXPECT_EQ(slots.at(2).at("task"), nullptr);
  EXPECT_EQ(slots.at(3).at("task"), nullptr);
  launch.kill(SIGTERM);
  EXPECT_EQ(launch.wait().code, 130);
  EXPECT_EQ(list("slot").at(0).at("task"), nullptr) << "free again";
}

// The plan of a dry run; the launch is refused where it is null.
Json plan_on(const TestRun& run, const std::string& cluster, int slots, std::vector<std::string> more = {}) {
  std::ofstream(run.folder() / "c.yaml") << cluster;
  more.insert(more.begin(),
              {"launch", run.experiment(), "--cluster", "c.yaml", "--dry-run", "--json", "--set",
               "resources.slots_per_trial=" + std::to_string(slots), "--set", "hyperparameters.global_batch_size=96"});
  const Result result = dtrain(run, more);
  EXPECT_EQ(result.code, result.out.empty() ? 2 : 0) << result.err;
  return result.out.empty() ? Json() : Json::parse(result.out);
}

std::string cluster_of(const std::vector<int>& sizes) {
  std::string text = "agents:\n";
  for (std::size_t i = 0; i < sizes.size(); ++i)
    text += "  - {id: a" + std::to_string(i) + ", host: node-" + std::to_string(i) +
            ".invalid, slots: " + std::to_string(sizes[i]) + "}\n";
  return text;
}

TEST(Placement, ADryRunSaysWhereEveryRankWouldGo) {
  const TestRun run;
  const auto placement = [&](const std::vector<int>& sizes, int slots) {
    return plan_on(run, cluster_of(sizes), slots).at("placement").dump();
  };
  EXPECT_EQ(placement({8, 7, 7, 4, 4, 4, 4}, 16),
            R"([{"agent":"a3","slots":4,"ranks":[0,1,2,3]},{"agent":"a4","slots":4,"ranks":[4,5,6,7]},)"
            R"({"agent":"a5","slots":4,"ranks":[8,9,10,11]},{"agent":"a6","slots":4,"ranks":[12,13,14,15]}])");
  EXPECT_EQ(placement({2, 1, 1}, 4), R"([{"agent":"a0","slots":2,"ranks":[0,1]},{"agent":"a1","slots":1,"ranks":[2]},)"
                                     R"({"agent":"a2","slots":1,"ranks":[3]}])");
  EXPECT_EQ(placement({8, 6, 4}, 12), R"([{"agent":"a0","slots":8,"ranks":[0,1,2,3,4,5,6,7]},)"
                                      R"({"agent":"a2","slots":4,"ranks":[8,9,10,11]}])");
  const Json plan = plan_on(run, cluster_of({2, 1, 1}), 4);
  EXPECT_EQ(plan.at("batch_per_rank"), Json({24, 24, 24, 24}));
  EXPECT_EQ(plan.at("command")[0], rank_program());
  EXPECT_EQ(plan.at("ranks")[2].at("host"), "node-1.invalid");
}

TEST(Placement, KeysOfTheClusterAndOfTheExperimentDecide) {
  const TestRun run;
  const std::string mixed = cluster_of({2, 1, 1});
  EXPECT_EQ(plan_on(run, mixed + "scheduler: {allow_heterogeneous_fits: false}\n", 4), nullptr);
  EXPECT_EQ(plan_on(run, mixed, 4, {"--set", "resources.is_single_node=true"}), nullptr);
  EXPECT_EQ(plan_on(run, mixed, 4, {"--set", "resources.resource_pool=fast"}), nullptr);
  const std::string pools =
      "agents: [{id: a, slots: 2, slot_type: cpu}, {id: b, slots: 4, resource_pool: fast}, "
      "{id: g, slots: 2, slot_type: cuda}]\n";
  EXPECT_EQ(plan_on(run, pools, 2, {"--set", "resources.resource_pool=fast"}).at("placement")[0].at("agent"), "b");
  EXPECT_EQ(plan_on(run, pools, 4), nullptr) << "GPUs do not count as cores";
  EXPECT_EQ(plan_on(run, pools, 2).at("placement")[0].at("agent"), "a");
  for (const char* type : {"auto", "cuda"}) {
    const Json plan = plan_on(run, pools, 2, {"--set", "resources.slot_type=" + std::string(type)});
    EXPECT_EQ(plan.at("placement")[0].at("agent"), "g") << type;
    EXPECT_EQ(plan.at("slot_type"), "cuda");
  }
  EXPECT_EQ(plan_on(run, cluster_of({2, 3}), 1).at("placement")[0].at("agent"), "a0");
  EXPECT_EQ(plan_on(run, cluster_of({2, 3}) + "scheduler: {fitting_policy: worst}\n", 1).at("placement")[0].at("agent"),
            "a1");
}

TEST(Placement, WhatNeverFitsIsRefusedWithWhatWould) {
  const TestRun run;
  std::ofstream(run.folder() / "c.yaml") << cluster_of({8, 8, 3, 3, 3});
  for (const bool dry : {true, false}) {
    std::vector<std::string> arguments{"launch",    run.experiment(),
                                       "--cluster", "c.yaml",
                                       "--set",     "resources.slots_per_trial=12",
                                       "--set",     "hyperparameters.global_batch_size=128"};
    if (dry) arguments.insert(arguments.end(), {"--dry-run", "--json"});
    const Result refused = dtrain(run, arguments);
    EXPECT_EQ(refused.code, 2);
    EXPECT_EQ(refused.out, "");
    EXPECT_THAT(refused.err, HasSubstr("c.yaml: 12 slots never fit on this cluster"));
    EXPECT_THAT(refused.err, HasSubstr("2 agents of 8 slots (a0, a1): 12 is not a multiple of 8"));
    EXPECT_THAT(refused.err,
                HasSubstr("11 (with a global_batch_size of 121 or 132), or 14 (with a global_batch_size of "
                          "126 or 140)"));
  }
  EXPECT_FALSE(fs::exists(run.folder() / "runs"));
}

TEST(Placement, RanksOfOtherMachinesAreNotStartedHere) {
  const TestRun run;
  std::ofstream(run.folder() / "c.yaml") << cluster_of({1, 1});
  const Result refused = dtrain(run, {"launch", run.experiment(), "--cluster", "c.yaml"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the ranks of agent a0 belong on the host node-0.invalid"));
  EXPECT_FALSE(fs::exists(run.folder() / "runs"));
}

TEST(Placement, AgentsOfThisMachineRunHere) {
  TestRun run({.batches = 3});
  std::ofstream(run.folder() / "cluster.yaml")
      << "agents: [{id: left, host: localhost, slots: 1}, {id: right, host: 127.0.0.1, slots: 1}]\n";
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().code, 0) << launch.err();
  const Json plan = read_json(run.run_dir() / "plan.json");
  EXPECT_EQ(plan.at("placement").size(), 2u);
  EXPECT_EQ(plan.at("placement")[1].at("agent"), "right");
  EXPECT_EQ(plan.at("cluster"), "cluster.yaml");
  run.expect_nothing_left();
}

TEST(Scaling, MoreSlotsWithTheSameBatchAreAdvisedAgainst) {
  TestRun run({.slots = 1, .batches = 1});
  std::ofstream(run.folder() / "cluster.yaml") << "agents: [{id: here, host: localhost, slots: 2}]\n";
  const auto warning_of = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"launch", run.experiment(), "--dry-run"});
    return dtrain(run, more).err;
  };
  EXPECT_THAT(warning_of({}), Not(HasSubstr("weak scaling")));
  EXPECT_THAT(warning_of({"--set", "resources.slots_per_trial=2"}),
              HasSubstr("2 slots, where " + run.experiment().string() + " has 1, but no larger batch"));
  EXPECT_THAT(warning_of({"--set", "resources.slots_per_trial=2", "--set", "hyperparameters.global_batch_size=16"}),
              Not(HasSubstr("weak scaling")));
  EXPECT_THAT(
      warning_of({"--set", "resources.slots_per_trial=2", "--set", "hyperparameters.batch_size_of_loader=true"}),
      Not(HasSubstr("weak scaling")))
      << "the batch is that of a script's loader, which only the script knows";
  ASSERT_EQ(dtrain(run, {"launch", run.experiment()}).code, 0);
  const std::string text = slurp(run.experiment());
  const auto at = text.find("slots_per_trial: 1");
  std::ofstream(run.experiment()) << text.substr(0, at) << "slots_per_trial: 2" << text.substr(at + 18);
  EXPECT_THAT(warning_of({}), HasSubstr("2 slots, where the run 0001-test has 1, but no larger batch"));
}

TEST(Scaling, TheSameCoresDividedOtherwiseNeedNoLargerBatch) {
  TestRun run({.slots = 1, .batches = 1});
  ASSERT_EQ(dtrain(run, {"launch", run.experiment()}).code, 0);
  const Result two = dtrain(run, {"launch", run.experiment(), "--dry-run", "--set", "resources.slots_per_trial=2"});
  EXPECT_THAT(two.err, Not(HasSubstr("weak scaling")));
}

}  // namespace
}  // namespace dtrain
