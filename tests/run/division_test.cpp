// resources.slots_per_trial: auto, with real launches of a program whose steps take as long as the number of ranks
// says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/host/cpu.h"
#include "run_harness.h"

namespace dtrain {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kAuto = "resources.slots_per_trial=auto";

// Two ranks are the fastest.
Settings fast_with_two(const std::string& more = "") {
  return {.batches = 10, .hyperparameters = "step_ms: 40, step_ms_by_ranks: {2: 9}" + more};
}

class Division : public testing::Test {
 protected:
  void SetUp() override {
    if (host::usable_cores().size() < 2) GTEST_SKIP() << "one core cannot be divided";
  }

  // In the folder `to` of the test's folder. Folders of trials and what is remembered are in that folder, too.
  Command launch(const TestRun& run, const std::vector<std::string>& options, const std::string& to = "run") {
    std::vector<std::string> command{bin("dtrain"), "launch"};
    if (std::find(options.begin(), options.end(), "--continue") == options.end()) {
      command.insert(command.end(), {run.experiment().string(), "--run-dir", (run.folder() / to).string()});
    }
    command.insert(command.end(), options.begin(), options.end());
    fs::create_directories(run.folder() / "tmp");
    return Command(
        run.folder(), command,
        {{"TMPDIR", (run.folder() / "tmp").string()}, {"XDG_CACHE_HOME", (run.folder() / "cache").string()}});
  }
  static Json plan_of(const TestRun& run, const std::string& of = "run") {
    return Json::parse(slurp(run.folder() / of / "plan.json"));
  }
  static std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
    return names;
  }
  static Json trial_of(const Json& division, int slots) {
    for (const Json& one : division.at("trials")) {
      if (one.at("slots") == slots) return one;
    }
    return Json();
  }
};

TEST_F(Division, IsMeasuredOnceAndKept) {
  TestRun run(fast_with_two(", checkpoint_every: 5"));
  Command before = launch(run, {"--dry-run", "--json", "--set", kAuto});
  ASSERT_EQ(before.wait().code, 0) << before.err();
  const Json unknown = Json::parse(before.out()).at("division");
  EXPECT_EQ(unknown.at("slots"), nullptr);
  EXPECT_EQ(trial_of(unknown, 1).at("step_ms"), nullptr) << unknown;
  EXPECT_FALSE(fs::exists(run.run_dir()));

  Command first = launch(run, {"--set", kAuto});
  ASSERT_EQ(first.wait().code, 0) << first.out() << first.err();
  EXPECT_THAT(first.out(), HasSubstr("dtrain:   2 ranks x "));
  EXPECT_THAT(first.out(), HasSubstr("resources.slots_per_trial: 2 fixes it"));
  const Json plan = plan_of(run);
  EXPECT_EQ(plan.at("world_size"), 2);
  EXPECT_THAT(plan.at("overrides"), Contains("resources.slots_per_trial=2"));
  const Json& division = plan.at("division");
  EXPECT_EQ(division.at("slots"), 2);
  EXPECT_EQ(division.at("remembered"), false);
  EXPECT_GE(trial_of(division, 1).at("step_ms").get<double>(), 40);
  EXPECT_GE(trial_of(division, 2).at("step_ms").get<double>(), 9);
  EXPECT_LT(trial_of(division, 2).at("step_ms"), trial_of(division, 1).at("step_ms"));
  EXPECT_THAT(names_in(run.folder() / "tmp"), IsEmpty());

  Command dry = launch(run, {"--dry-run", "--set", kAuto});
  ASSERT_EQ(dry.wait().code, 0) << dry.err();
  EXPECT_THAT(dry.out(), HasSubstr("auto takes 2, the fastest by the figures of an earlier launch"));

  Command second = launch(run, {"--set", kAuto}, "second");
  ASSERT_EQ(second.wait().code, 0) << second.err();
  EXPECT_THAT(second.out(), Not(HasSubstr("trying")));
  const Json again = plan_of(run, "second");
  EXPECT_EQ(again.at("division").at("remembered"), true);
  EXPECT_EQ(again.at("division").at("trials"), division.at("trials"));
  EXPECT_EQ(again.at("world_size"), 2);

  fs::remove_all(run.folder() / "cache");  // what a continuation keeps is the run's own
  Command longer = launch(run, {"--continue", run.run_dir().string(), "--set", "searcher.max_length.batches=15"});
  ASSERT_EQ(longer.wait().code, 0) << longer.out() << longer.err();
  EXPECT_THAT(longer.out(), Not(HasSubstr("trying")));
  EXPECT_EQ(plan_of(run).at("world_size"), 2);
  EXPECT_EQ(plan_of(run).at("division").at("slots"), 2);
  Command asked =
      launch(run, {"--continue", run.run_dir().string(), "--set", "searcher.max_length.batches=20", "--set", kAuto});
  ASSERT_EQ(asked.wait().code, 0) << asked.out() << asked.err();
  EXPECT_EQ(plan_of(run).at("world_size"), 2) << "a run that goes on keeps its division";

  Command other = launch(run, {"--dry-run", "--set", kAuto, "--set", "hyperparameters.global_batch_size=16"}, "other");
  ASSERT_EQ(other.wait().code, 0) << other.err();
  EXPECT_THAT(other.out(), HasSubstr("not known yet")) << "another batch is another question";
}

TEST_F(Division, ThatFailsIsNamedAndLeftOut) {
  TestRun run(fast_with_two(", trouble: {ranks: 2, batch: 3, kind: exception}"));
  Command launched = launch(run, {"--set", kAuto});
  ASSERT_EQ(launched.wait().code, 0) << launched.out() << launched.err();
  EXPECT_THAT(launched.out(), HasSubstr("left out, its trial failed: "));
  EXPECT_THAT(launched.out(), HasSubstr("the model makes no sense"));
  const Json division = plan_of(run).at("division");
  EXPECT_NE(division.at("slots"), 2);
  EXPECT_THAT(trial_of(division, 2).at("failure").get<std::string>(), HasSubstr("the model makes no sense"));
  EXPECT_EQ(trial_of(division, 2).at("step_ms"), nullptr);
}

TEST_F(Division, AllFailWithTheFirstError) {
  TestRun run(fast_with_two(", trouble: {batch: 3, kind: exception}"));
  Command launched = launch(run, {"--set", kAuto});
  EXPECT_EQ(launched.wait().code, 1) << launched.out();
  EXPECT_THAT(launched.err(), HasSubstr("the model makes no sense"));
  EXPECT_FALSE(fs::exists(run.run_dir()));
  const std::vector<std::string> kept = names_in(run.folder() / "tmp");
  ASSERT_EQ(kept.size(), 1u);
  const fs::path trials = run.folder() / "tmp" / kept.front();
  EXPECT_THAT(launched.out(), HasSubstr("logs of the trials: " + trials.string()));
  EXPECT_TRUE(fs::exists(trials / "1-ranks" / "logs" / "rank-0000.log"));
}

// SIGINT as Ctrl-C sends it, and SIGKILL, after which the trial ends by itself.
TEST_F(Division, TrialsEndWithTheirLauncher) {
  for (const int signal : {SIGINT, SIGKILL}) {
    TestRun run(fast_with_two());
    Command launched = launch(run, {"--set", kAuto});
    fs::path trial;
    ASSERT_TRUE(eventually([&] {
      if (trial.empty() && !names_in(run.folder() / "tmp").empty()) {
        trial = run.folder() / "tmp" / names_in(run.folder() / "tmp").front() / "1-ranks";
      }
      return !trial.empty() && slurp(trial / "logs" / "rank-0000.log").find("batch 2\n") != std::string::npos;
    })) << launched.out();
    std::vector<pid_t> pids;
    for (const Json& event : read_lines(trial / "events.jsonl")) {
      if (event.contains("pid")) pids.push_back(event.at("pid").get<pid_t>());
    }
    EXPECT_GE(pids.size(), 3u);
    launched.kill(signal);
    const ExitStatus status = launched.wait();
    for (const pid_t pid : pids) EXPECT_TRUE(eventually([&] { return !is_alive(pid); })) << pid;
    EXPECT_FALSE(fs::exists(run.run_dir()));
    if (signal == SIGKILL) continue;
    EXPECT_EQ(status.code, 130);
    EXPECT_THAT(launched.out(), HasSubstr("interrupted: the trials have ended"));
    EXPECT_THAT(names_in(run.folder() / "tmp"), IsEmpty());
    EXPECT_FALSE(fs::exists(run.folder() / "cache" / "dtrain" / "divisions"));
  }
}

TEST_F(Division, OfDeclaredSlotsIsAllOfThem) {
  TestRun run(fast_with_two());
  std::ofstream(run.folder() / "cluster.yaml") << "agents: [{id: here, host: localhost, slots: 3}]\n";
  Command one = launch(run, {"--dry-run", "--json", "--set", kAuto, "--set", "hyperparameters.global_batch_size=9"});
  ASSERT_EQ(one.wait().code, 0) << one.err();
  EXPECT_EQ(Json::parse(one.out()).at("division").at("slots"), 3);
  EXPECT_EQ(Json::parse(one.out()).at("world_size"), 3);
  Command few = launch(run, {"--dry-run", "--json", "--set", kAuto, "--set", "hyperparameters.global_batch_size=2"});
  ASSERT_EQ(few.wait().code, 0) << few.err();
  EXPECT_EQ(Json::parse(few.out()).at("world_size"), 2) << "a rank without a record has nothing to do";
}

TEST_F(Division, OfRanksWithoutALauncherIsTheirs) {
  TestRun run(fast_with_two());
  Command alone(run.folder(),
                {rank_program(), run.experiment().string(), "--run-dir", run.run_dir().string(), "--set", kAuto});
  ASSERT_EQ(alone.wait().code, 0) << alone.err();
  const Json plan = plan_of(run);
  EXPECT_EQ(plan.at("world_size"), 1);
  EXPECT_EQ(plan.at("experiment").at("resources").at("slots_per_trial"), "auto");
  EXPECT_THAT(plan.at("warnings").dump(), Not(HasSubstr("slots_per_trial")));
  Command check(run.folder(), {bin("dtrain"), "config", "check", run.experiment().string(), "--set", kAuto});
  EXPECT_EQ(check.wait().code, 0);
  EXPECT_THAT(check.out(), HasSubstr("as many slots as a launch finds best"));
}

TEST_F(Division, IsRefusedWhereItCannotBeChosen) {
  TestRun run(fast_with_two());
  std::ofstream(run.folder() / "two.yaml") << "agents: [{id: a, slots: 2}, {id: b, slots: 2}]\n";
  std::ofstream(run.folder() / "mpi.yaml") << "launcher: mpi\n";
  const auto refusal = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"--dry-run", "--set", kAuto});
    Command launched = launch(run, options);
    EXPECT_EQ(launched.wait().code, 2);
    return launched.err();
  };
  const std::string two = refusal({"--cluster", "two.yaml"});
  EXPECT_THAT(two, HasSubstr("--set:1: resources.slots_per_trial: auto is for one agent"));
  EXPECT_THAT(two, HasSubstr("has 2 of them"));
  EXPECT_THAT(two, HasSubstr("give the number of slots: resources.slots_per_trial: 2"));
  EXPECT_THAT(refusal({"--cluster", "mpi.yaml"}), HasSubstr("launcher: mpi"));
  EXPECT_THAT(refusal({"--mock", "loader"}), HasSubstr("does not go with --mock loader"));
}

}  // namespace
}  // namespace dtrain
