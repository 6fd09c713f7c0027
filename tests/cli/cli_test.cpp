// The command line: what it prints, and with which exit code.
#include <gmock/gmock.h>

#include "cli_harness.h"

namespace dtrain {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Cli, HelpTeaches) {
  const TestRun run;
  const Result help = dtrain(run, {"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* part : {"launch", "config", "logs", "summary", "version", "completion", "examples:", "--dry-run"}) {
    EXPECT_THAT(help.out, HasSubstr(part));
  }
  for (const char* command : {"launch", "logs", "summary"}) EXPECT_EQ(dtrain(run, {command, "--help"}).code, 0);
  EXPECT_THAT(dtrain(run, {"launch", "--help"}).out, HasSubstr("\n  130  Interrupted by Ctrl-C"));
}

TEST(Cli, WrongUseIsExitCode2) {
  const TestRun run;
  const Result unknown = dtrain(run, {"lunch"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("there is no command 'lunch'; did you mean launch?"));
  EXPECT_EQ(dtrain(run, {}).code, 2);
  EXPECT_EQ(dtrain(run, {"launch"}).code, 2);
  EXPECT_EQ(dtrain(run, {"launch", "x.yaml", "--frobnicate"}).code, 2);
  EXPECT_EQ(dtrain(run, {"logs", "1", "--rank", "-3"}).code, 2);
}

TEST(Cli, AnUnknownOptionSuggestsTheNearestOfItsCommand) {
  const TestRun run;
  const auto error_of = [&](const std::vector<std::string>& words) {
    const Result result = dtrain(run, words);
    EXPECT_EQ(result.code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(
      error_of({"launch", "x.yaml", "--sett", "a=b"}),
      HasSubstr("dtrain launch: there is no option '--sett'; did you mean --set?\n  dtrain launch --help lists"));
  EXPECT_THAT(error_of({"launch", "--clutser=c.yaml"}), HasSubstr("no option '--clutser'; did you mean --cluster?"))
      << "said before the missing EXPERIMENT";
  EXPECT_THAT(error_of({"config", "check", "x.yaml", "--clster", "y"}), HasSubstr("dtrain config check: there is no"));
  EXPECT_THAT(error_of({"launch", "x.yaml", "--frobnicate"}),
              testing::AllOf(HasSubstr("there is no option '--frobnicate'\n"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(error_of({"--versoin"}),
              HasSubstr("dtrain: there is no option '--versoin'; did you mean --version?\n  dtrain --help lists"));
  EXPECT_THAT(error_of({"task", "lst"}), HasSubstr("dtrain task: there is no command 'lst'; did you mean list?"));
  EXPECT_THAT(error_of({"config", "frobnicate"}), HasSubstr("the commands are: check, schema"));
  const std::vector<std::vector<std::string>> commands{{"launch"},        {"config", "check"}, {"config", "schema"},
                                                       {"agent", "list"}, {"slot", "list"},    {"task", "list"},
                                                       {"task", "show"},  {"task", "kill"},    {"task", "wait"},
                                                       {"task", "pause"}, {"task", "resize"},  {"logs"},
                                                       {"top"},           {"board"},           {"follow"},
                                                       {"summary"},       {"report"},          {"runs"},
                                                       {"analyze"},       {"what-if"},         {"diff"},
                                                       {"trace"},         {"export"},          {"doctor"},
                                                       {"completion"},    {"version"}};
  for (std::vector<std::string> words : commands) {
    words.emplace_back("--hellp");
    EXPECT_THAT(error_of(words), HasSubstr("did you mean --help?")) << words.front();
  }
}

TEST(Cli, Version) {
  for (const char* word : {"version", "--version"}) {
    const Result result = dtrain(TestRun(), {word});
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out, testing::ContainsRegex("^dtrain [0-9]+\\.[0-9]+\\.[0-9]+, commit [0-9a-z]+\n")) << word;
    for (const char* name : {"\nlibtorch ", "\nMPI ", "\nNCCL ", "\nCPU "}) {
      EXPECT_THAT(result.out, HasSubstr(name)) << word;
    }
  }
  const Json object = Json::parse(dtrain(TestRun(), {"version", "--json"}).out);
  EXPECT_THAT(object.at("dtrain").get<std::string>(), HasSubstr(", commit "));
  EXPECT_FALSE(object.at("CPU").get<std::string>().empty());
}

TEST(ConfigCheck, SaysOkOrEverythingThatIsWrong) {
  const TestRun run;
  const Result good = dtrain(run, {"config", "check", run.experiment()});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_THAT(good.out, HasSubstr(": ok: test, 20 batches, 2 slots x 4 records a batch"));
  const Result bad = dtrain(run, {"config", "check", run.experiment(), "--set", "resources.slots_per_trail=3", "--set",
                                  "searcher.max_length.batches=0"});
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("slots_per_trail"));
  EXPECT_THAT(bad.err, HasSubstr("slots_per_trial"));
  EXPECT_THAT(bad.err, HasSubstr("max_length")) << "all errors at once";
  EXPECT_EQ(dtrain(run, {"config", "check", "none.yaml"}).code, 2);
  const Result first = dtrain(run, {"config", "check", "--set", "resources.slots_per_trial=1", run.experiment()});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("1 slot x 8 records"));
  EXPECT_EQ(dtrain(run, {"config", "check", "--set", "resources.slots_per_trial=1"}).code, 2);
}

TEST(ConfigCheck, SaysWhatTheExperimentNamesAndIsNotHere) {
  const TestRun run;
  const Result program = dtrain(run, {"config", "check", run.experiment(), "--set", "entrypoint=./bin/trial", "--set",
                                      "initial_weights=none.safetensors"});
  EXPECT_EQ(program.code, 2) << program.out;
  EXPECT_THAT(program.err, HasSubstr("entrypoint: there is no program " + (run.folder() / "bin/trial").string()));
  EXPECT_THAT(program.err,
              HasSubstr("initial_weights: there is no file " + (run.folder() / "none.safetensors").string()));
  EXPECT_EQ(program.out, "");
  const Result python = dtrain(run, {"config", "check", run.experiment(), "--set", "entrypoint=model_def:MyTrial"});
  EXPECT_THAT(python.err, HasSubstr("a Python class is named with its file: train.py:MyTrial"));

  const fs::path model = run.folder() / "model.yaml";
  std::ofstream(model) << "model: net.pt\nloss: mse\noptimizer: {kind: sgd, lr: 0.1}\n"
                          "data: {format: npy, training: {features: a.npy, target: b.npy},"
                          " validation: {features: c.npy, target: .}}\n"
                          "hyperparameters: {global_batch_size: 8}\nsearcher: {max_length: {batches: 1}}\n";
  std::ofstream(run.folder() / "a.npy") << "x";
  const Result missing = dtrain(run, {"config", "check", model});
  EXPECT_EQ(missing.code, 2);
  for (const char* text :
       {"model.yaml: model: there is no file ", "net.pt", "data.training.target: there is no file ",
        "data.validation.features: there is no file ", "data.validation.target: there is no file "}) {
    EXPECT_THAT(missing.err, HasSubstr(text));
  }
  EXPECT_THAT(missing.err, Not(HasSubstr("data.training.features")));
  const Result file_only = dtrain(run, {"config", "check", "--file-only", model});
  EXPECT_EQ(file_only.code, 0) << file_only.err;
}

TEST(ConfigCheck, LooksAtEveryFile) {
  const TestRun run;
  const Result mixed = dtrain(run, {"config", "check", "none.yaml", run.experiment(), "nothing.yaml"});
  EXPECT_EQ(mixed.code, 2);
  EXPECT_THAT(mixed.out, HasSubstr(": ok: test, 20 batches"));
  EXPECT_THAT(mixed.err, HasSubstr("none.yaml: cannot be read"));
  EXPECT_THAT(mixed.err, HasSubstr("nothing.yaml: cannot be read"));
  EXPECT_EQ(dtrain(run, {"config", "check"}).code, 2);
}

TEST(ConfigCheck, ReadsAClusterFileToo) {
  const TestRun run;
  const std::string file = run.folder() / "cluster.yaml";
  std::ofstream(file) << "agents: [{id: a, slots: 8}, {id: b, slots: 4}]\n";
  const Result good = dtrain(run, {"config", "check", "--cluster", file});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_THAT(good.out, HasSubstr("cluster.yaml: ok: 2 agents, 12 slots"));
  std::ofstream(file) << "launcher: pbs\n";
  const Result bad = dtrain(run, {"config", "check", "--cluster", file, run.experiment()});
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("cluster.yaml:1: launcher: must be local, mpi or slurm, not 'pbs'"));
  EXPECT_THAT(bad.out, HasSubstr(": ok: test")) << "the experiment is looked at all the same";
  const std::string hosts = run.folder() / "hosts.txt";
  std::ofstream(hosts) << "node-1 slots=4\nnode-2\n";
  const Result hostfile = dtrain(run, {"config", "check", "--cluster", hosts});
  EXPECT_EQ(hostfile.code, 0) << hostfile.err;
  EXPECT_THAT(hostfile.out, HasSubstr("hosts.txt: ok: 2 agents, 5 slots"));
  EXPECT_THAT(hostfile.err, HasSubstr("count as one slot: node-2"));
  EXPECT_EQ(dtrain(run, {"launch", run.experiment(), "--dry-run", "--cluster", file}).code, 2);
}

TEST(ConfigSchema, PrintsTheSchemaOfEachKindOfFile) {
  const TestRun run;
  for (const std::string kind : {"experiment", "cluster"}) {
    const Result result = dtrain(run, {"config", "schema", kind});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(Json::parse(result.out).at("title"), "dtrain " + kind);
  }
  const Result wrong = dtrain(run, {"config", "schema", "claster"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("cluster"));
}

TEST(Launch, BadInputStartsNothing) {
  TestRun run;
  for (const std::string wrong : {"searcher.max_length.batches=-1", "resources.slots=2", "nonsense"}) {
    Command launch = run.launch({"--set", wrong});
    EXPECT_EQ(launch.wait().code, 2) << wrong;
    EXPECT_THAT(launch.err(), HasSubstr("--set")) << wrong;
  }
  EXPECT_FALSE(fs::exists(run.run_dir()));
}

TEST(Launch, AMissingEntrypointIsNamed) {
  TestRun by_name({.entrypoint = "rank_porgram"});
  Command launch = by_name.launch();
  EXPECT_EQ(launch.wait().code, 2);
  EXPECT_THAT(launch.err(), HasSubstr("entrypoint: there is no program 'rank_porgram' in "));
  EXPECT_FALSE(fs::exists(by_name.run_dir()));

  TestRun by_path({.entrypoint = "./bin/trial"});
  Command second = by_path.launch();
  EXPECT_EQ(second.wait().code, 2);
  EXPECT_THAT(second.err(), HasSubstr("there is no program " + (by_path.folder() / "bin/trial").string()));
}

TEST(Launch, AWrongLibtorchIsNamedBeforeAnythingStarts) {
  const TestRun run({.batches = 2});
  const auto launch = [&](const fs::path& torch) {
    Command command(run.folder(), {bin("dtrain"), "launch", run.experiment(), "--run-dir", run.run_dir()},
                    {{"DTRAIN_LIBTORCH_DIR", torch.string()}});
    const int code = command.wait().code;
    return Result{code, command.out(), command.err()};
  };
  const Result nothing = launch(run.folder());
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("there is no lib/libtorch_cpu.so in " + run.folder().string()));
  EXPECT_THAT(nothing.err, HasSubstr("dtrain-get-libtorch"));

  const fs::path torch = run.folder() / "torch";
  fs::create_directories(torch / "lib");
  std::ofstream(torch / "lib/libtorch_cpu.so") << "\n";
  if (fs::exists(bin("dtrain-worker"))) {  // else this dtrain is for no libtorch
    std::ofstream(torch / "version.py") << "__version__ = '2.4.1+cpu'\n";
    const Result old = launch(torch);
    EXPECT_EQ(old.code, 2);
    EXPECT_THAT(old.err, HasSubstr("is 2.4.1, and dtrain is built for " DTRAIN_LIBTORCH_MINOR));
    EXPECT_FALSE(fs::exists(run.run_dir()));
  }

  // A program without torch does not open it.
  std::ofstream(torch / "version.py") << "__version__ = '" DTRAIN_LIBTORCH_MINOR ".7a0+cpu'\n";
  EXPECT_EQ(launch(torch).code, 0);
}

TEST(Launch, AnEntrypointWithASlashIsRelativeToTheFile) {
  TestRun run({.batches = 2, .entrypoint = "./trial"});
  fs::create_symlink(rank_program(), run.folder() / "trial");
  TemporaryFolder elsewhere;
  Command launch(elsewhere.path(), {bin("dtrain"), "launch", run.experiment(), "--run-dir", run.run_dir()});
  EXPECT_EQ(launch.wait().code, 0) << launch.err();
}

TEST(Launch, ARunDirThatHoldsARunIsRefused) {
  TestRun run({.batches = 2});
  EXPECT_EQ(run.launch().wait().code, 0);
  Command second = run.launch();
  EXPECT_EQ(second.wait().code, 2);
  EXPECT_THAT(second.err(), HasSubstr("already holds a run"));
}

TEST(Launch, DryRunPrintsThePlanAndStartsNothing) {
  const TestRun run;
  const Result text = dtrain(run, {"launch", run.experiment(), "--dry-run"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr(rank_program()));
  const Result json =
      dtrain(run, {"launch", run.experiment(), "--dry-run", "--json", "--set", "resources.slots_per_trial=3"});
  EXPECT_EQ(json.code, 0) << json.err;
  const Json plan = Json::parse(json.out);  // nothing else on standard output: the warning is not
  EXPECT_THAT(json.err, HasSubstr("warning"));
  EXPECT_EQ(plan.at("world_size"), 3);
  EXPECT_EQ(plan.at("batch_per_rank"), Json({2, 2, 2}));
  ASSERT_EQ(plan.at("placement").size(), 1u);
  EXPECT_EQ(plan.at("placement")[0].at("slots"), 3);
  EXPECT_EQ(plan.at("placement")[0].at("ranks"), Json({0, 1, 2}));
  EXPECT_EQ(plan.at("ranks").size(), 3u);
  EXPECT_EQ(plan.at("cluster"), "this machine");
  EXPECT_EQ(plan.at("launcher"), "local");
  EXPECT_EQ(plan.at("experiment").at("resources").at("slots_per_trial"), 3);
  EXPECT_FALSE(fs::exists(run.folder() / "runs"));
}

TEST(Logs, ShowsAllOrOneRank) {
  TestRun run({.batches = 3});
  ASSERT_EQ(run.launch().wait().code, 0);
  const Result all = dtrain(run, {"logs", "./run"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(all.out, HasSubstr("[rank=0] batch 3\n"));
  EXPECT_THAT(all.out, HasSubstr("[rank=1] batch 3\n"));
  const Result one = dtrain(run, {"logs", "./run", "--rank", "1"});
  EXPECT_THAT(one.out, HasSubstr("batch 3\n"));
  EXPECT_THAT(one.out, Not(HasSubstr("[rank=")));
  const Result none = dtrain(run, {"logs", "./run", "--rank", "5"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("no log of rank 5"));
  EXPECT_THAT(none.err, HasSubstr("0, 1"));
}

TEST(Logs, FollowEndsWithTheRun) {
  TestRun run({.batches = 100'000});
  Command launch = run.launch();
  ASSERT_TRUE(run.reached(1, 3)) << launch.err();
  const fs::path folder = run.folder() / "follow";
  fs::create_directory(folder);
  Command logs(folder, {bin("dtrain"), "logs", run.run_dir(), "-f"});
  ASSERT_TRUE(eventually([&] { return logs.says("[rank=1] batch 30\n"); }));
  launch.kill(SIGTERM);
  EXPECT_EQ(launch.wait().code, 130);
  EXPECT_EQ(logs.wait().code, 0);
  EXPECT_THAT(logs.out(), HasSubstr("[rank=0] leaving\n"));
}

TEST(Summary, OfARunByNumber) {
  TestRun run({.batches = 5});
  ASSERT_EQ(dtrain(run, {"launch", run.experiment()}).code, 0);
  const Result text = dtrain(run, {"summary", "1"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_FALSE(text.out.empty());
  const Result json = dtrain(run, {"summary", "test", "--json"});
  EXPECT_EQ(json.code, 0) << json.err;
  EXPECT_TRUE(Json::parse(json.out).is_object());
  const Result unknown = dtrain(run, {"summary", "tset"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 0001-test?"));
}

TEST(Analyze, OfARealRunSumsToItsWholeLoop) {
  TestRun run({.batches = 20});
  ASSERT_EQ(run.launch().wait().code, 0);
  const Result text = dtrain(run, {"analyze", "./run"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("Findings"));
  const Result json = dtrain(run, {"analyze", "./run", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const Json analysis = Json::parse(json.out);
  double sum = 0;
  for (const Json& part : analysis["waterfall"]["parts"]) sum += part["share"].get<double>();
  EXPECT_NEAR(sum, 1, 1e-9);
  EXPECT_EQ(analysis["steps"]["count"], 40);
  EXPECT_EQ(dtrain(run, {"analyze", "./nowhere"}).code, 2);

  const Result what_if = dtrain(run, {"what-if", "./run", "--json"});
  ASSERT_EQ(what_if.code, 0) << what_if.err;
  EXPECT_EQ(Json::parse(what_if.out), analysis["what_if"]);
  EXPECT_THAT(dtrain(run, {"what-if", "./run"}).out, HasSubstr("as measured"));
}

TEST(Report, IsWrittenAgainWhereOneWants) {
  TestRun run({.batches = 5});
  ASSERT_EQ(dtrain(run, {"launch", run.experiment()}).code, 0);
  const fs::path first = run.folder() / "runs" / "0001-test" / "report.html";
  EXPECT_TRUE(fs::exists(first));
  const Result again = dtrain(run, {"report", "1", "-o", "mine.html"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out, "mine.html\n");
  EXPECT_GT(fs::file_size(run.folder() / "mine.html"), 200'000u);
  const Result nowhere = dtrain(run, {"report", "1", "-o", "no/such/folder/r.html"});
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("no/such/folder"));
}

}  // namespace
}  // namespace dtrain
