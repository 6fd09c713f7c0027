// Ranks on GPUs from the experiment to the rank's process, with the fake NVML: real launches of a rank without torch,
// which prints the GPU that it got and what its process sees.
#include <gmock/gmock.h>

#include "harness/fake_gpus.h"
#include "run_harness.h"

namespace dtrain {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kShowPlace = "show_place: true, step_ms: 1";

// A folder with an experiment on GPUs, and GPUs. The library is found as any is, by its name.
class GpuRun : public testing::Test {
 protected:
  static Json gpu(int number, const Json& more = Json::object()) {
    Json gpu = {{"uuid", "GPU-" + std::to_string(number)},
                {"name", "Fake"},
                {"total", 16'000'000'000},
                {"free", 10'000'000'000},
                {"util", 37},
                {"temperature", 61},
                {"pids", Json::array()},
                {"driver", "600.1"}};
    gpu.update(more);
    return gpu;
  }
  static Json gpus(int count) {
    Json list = Json::array();
    for (int i = 0; i < count; ++i) list.push_back(gpu(i));
    return {{"gpus", list}};
  }
  void make(const Settings& settings, const Json& description) {
    run_ = std::make_unique<TestRun>(settings);
    fake_ = std::make_unique<harness::FakeGpus>(run_->folder());
    fake_->describe(description);
  }
  TestRun& run() { return *run_; }
  std::map<std::string, std::string> environment(std::map<std::string, std::string> more = {}) const {
    more["LD_LIBRARY_PATH"] = run_->folder();
    return more;
  }

  struct Result {
    int code = 0;
    std::string out, err;
  };
  Result launch(std::vector<std::string> options = {}, const std::map<std::string, std::string>& more = {}) const {
    std::vector<std::string> command{bin("dtrain"), "launch", run_->experiment(), "--run-dir", run_->run_dir()};
    command.insert(command.end(), options.begin(), options.end());
    Command dtrain(run_->folder(), command, environment(more));
    const int code = dtrain.wait().code;
    return {code, dtrain.out(), dtrain.err()};
  }
  // The plan of a dry run; null: refused.
  Json plan(std::vector<std::string> options = {}, const std::map<std::string, std::string>& more = {}) const {
    options.insert(options.end(), {"--dry-run", "--json"});
    const Result result = launch(options, more);
    return result.code == 0 ? Json::parse(result.out) : Json();
  }
  // Of a rank in plan.json: " 0 4".
  static std::string cpus_of(const Json& rank) {
    std::string text;
    for (const int cpu : rank.at("cpus")) text += " " + std::to_string(cpu);
    return text;
  }
  std::string place(int rank) const {
    const std::string log = run_->log(rank);
    const auto begin = log.find("place: ");
    return begin == std::string::npos ? "it shows none: " + log : log.substr(begin, log.find('\n', begin) - begin);
  }

 private:
  std::unique_ptr<TestRun> run_;
  std::unique_ptr<harness::FakeGpus> fake_;
};

TEST_F(GpuRun, EachRankHasItsGpuAndCoresNearIt) {
  make({.batches = 3, .hyperparameters = kShowPlace, .slot_type = "cuda"}, gpus(2));
  const Result launched = launch();
  ASSERT_EQ(launched.code, 0) << launched.out << launched.err;
  EXPECT_THAT(launched.out, HasSubstr("slots       2 of 2, GPUs\n"));
  EXPECT_THAT(launched.out, HasSubstr("rank  host              gpu   cpus      threads  batch\n"));
  const Json plan = read_json(run().run_dir() / "plan.json");
  EXPECT_EQ(plan.at("slot_type"), "cuda");
  for (int rank = 0; rank < 2; ++rank) {
    const Json& of_rank = plan.at("ranks")[static_cast<std::size_t>(rank)];
    EXPECT_EQ(of_rank.at("gpu"), (Json{{"index", rank}, {"uuid", "GPU-" + std::to_string(rank)}, {"name", "Fake"}}));
    EXPECT_EQ(place(rank),
              "place: gpu " + std::to_string(rank) + " of GPU-0,GPU-1 (PCI_BUS_ID), cpus" + cpus_of(of_rank));
    const auto dump = read_lines(run().run_dir() / "profile" / ("rank-000" + std::to_string(rank) + ".jsonl"));
    EXPECT_EQ(dump.at(0).at("gpu").at("uuid"), "GPU-" + std::to_string(rank)) << "the profile is of this GPU";
  }
  run().expect_nothing_left();
}

TEST_F(GpuRun, AutoTakesGpusWhereThereAreAnyAndCoresElsewhere) {
  make({.slot_type = "auto"}, gpus(2));
  EXPECT_EQ(plan().at("slot_type"), "cuda");
  EXPECT_EQ(plan().at("experiment").at("resources").at("slot_type"), "auto") << "what was asked for";
  EXPECT_EQ(plan({}, {{"CUDA_VISIBLE_DEVICES", ""}}).at("slot_type"), "cpu");
  EXPECT_FALSE(plan({}, {{"CUDA_VISIBLE_DEVICES", ""}}).at("ranks")[0].contains("gpu"));
  EXPECT_EQ(plan({"--set", "resources.slot_type=cpu"}).at("slot_type"), "cpu");
  make({.slot_type = "auto"}, gpus(0));
  EXPECT_EQ(plan().at("slot_type"), "cpu");
}

TEST_F(GpuRun, AutoThatFitsOnCoresAloneIsAnErrorThatSaysSo) {
  make({.slot_type = "auto"}, gpus(1));
  const Result refused = launch();
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("2 GPU slots never fit on this cluster"));
  EXPECT_THAT(refused.err, HasSubstr("the nearest resources.slots_per_trial that fits: 1; or train on CPUs with "
                                     "resources.slot_type: cpu"));
  EXPECT_FALSE(fs::exists(run().run_dir()));
}

TEST_F(GpuRun, WithoutAGpuTheReasonIsTold) {
  make({.slots = 1, .slot_type = "cuda"}, {{"init", 18}, {"gpus", Json::array()}});
  EXPECT_THAT(launch().err, HasSubstr("1 GPU slot never fits on this cluster, even when all of it is free\n"
                                      "  NVML does not start: Driver/library version mismatch"));
  make({.slots = 1, .slot_type = "cuda"}, gpus(0));
  EXPECT_THAT(launch().err, HasSubstr("this machine: NVIDIA's driver (NVML) reports no GPU, or CUDA_VISIBLE_DEVICES"));
  make({.slots = 2, .slot_type = "auto"}, {{"gpus", {gpu(0), gpu(1, {{"rows", "failed"}})}}});
  EXPECT_THAT(launch().err, HasSubstr("  GPU 1 is no slot: rows of its memory could not be remapped: it needs repair"));
}

TEST_F(GpuRun, TheUsersOwnVariableRestrictsTheSlots) {
  make({.slots = 1, .batches = 2, .hyperparameters = kShowPlace, .slot_type = "auto"}, gpus(4));
  ASSERT_EQ(launch({}, {{"CUDA_VISIBLE_DEVICES", "3,1"}}).code, 0);
  EXPECT_THAT(place(0), HasSubstr("place: gpu 0 of GPU-3 (PCI_BUS_ID)"));
  const std::string variables = "environment.environment_variables={CUDA_VISIBLE_DEVICES: GPU-2}";
  EXPECT_EQ(plan({"--set", variables}).at("ranks")[0].at("gpu").at("uuid"), "GPU-2");
  EXPECT_EQ(plan({"--set", "resources.slots_per_trial=3"}, {{"CUDA_VISIBLE_DEVICES", "3,1"}}), nullptr);
}

TEST_F(GpuRun, TwoTasksNeverShareAGpu) {
  make({.slots = 1, .batches = 100'000, .hyperparameters = "step_ms: 1", .slot_type = "cuda"}, gpus(2));
  const auto start = [&](const std::string& name, const std::string& visible) {
    fs::create_directory(run().folder() / name);
    auto variables = environment({{"DTRAIN_STATE_DIR", run().folder() / "state"}});
    if (!visible.empty()) variables["CUDA_VISIBLE_DEVICES"] = visible;
    return std::make_unique<Command>(run().folder() / name,
                                     std::vector<std::string>{bin("dtrain"), "launch", run().experiment(), "--run-dir",
                                                              run().folder() / name / "run"},
                                     variables);
  };
  const auto gpu_of = [&](const std::string& name) {
    return read_json(run().folder() / name / "run" / "plan.json").at("ranks")[0].at("gpu").at("uuid");
  };
  const auto runs = [&](const std::string& name) {
    return eventually([&] {
      return slurp(run().folder() / name / "run" / "logs" / "rank-0000.log").find("batch 2\n") != std::string::npos;
    });
  };
  const auto first = start("first", "1");  // its slot 0 is the second GPU
  ASSERT_TRUE(runs("first")) << first->out() << first->err();
  const auto second = start("second", "");
  ASSERT_TRUE(runs("second")) << second->out() << second->err();
  EXPECT_EQ(gpu_of("first"), "GPU-1");
  EXPECT_EQ(gpu_of("second"), "GPU-0");
  const auto third = start("third", "1");
  EXPECT_TRUE(eventually([&] { return third->says("waits: task 1 (test) holds 1 of 1 slot of "); })) << third->out();
  EXPECT_FALSE(third->says("one slot per core"));

  Command list(run().folder(), {bin("dtrain"), "slot", "list", "--csv"}, environment());
  list.wait();
  EXPECT_THAT(list.out(), HasSubstr(",0,,2,cuda,")) << list.out();
  EXPECT_THAT(list.out(), HasSubstr(",1,,1,cuda,"));
  Command show(run().folder(), {bin("dtrain"), "task", "show", "1"}, environment());
  show.wait();
  EXPECT_THAT(show.out(), HasSubstr(", slots 0 (GPU-1)\n"));
  for (const auto* one : {&third, &second, &first}) {
    (*one)->kill(SIGTERM);
    EXPECT_EQ((*one)->wait().code, 130);
  }
}

TEST_F(GpuRun, AGpuThatOthersUseGivesAWarningOrIsRefused) {
  const Json taken = {{"pids", {999'999'999}}, {"used", 3 << 20}};
  make({.slots = 1, .batches = 2, .slot_type = "cuda"}, {{"gpus", {gpu(0, taken)}}});
  const std::string warning =
      "GPU 0 (Fake, GPU-0) is in use by process 999999999 (3.0 MiB of its memory): the run shares";
  const Result shared = launch();
  EXPECT_EQ(shared.code, 0) << shared.err;
  EXPECT_EQ(count_of(shared.out + shared.err, warning), 1) << shared.out << shared.err;
  EXPECT_THAT(read_json(run().run_dir() / "plan.json").at("warnings").dump(), HasSubstr(warning));

  Json exclusive = taken;
  exclusive["compute_mode"] = 3;
  make({.slots = 1, .batches = 2, .slot_type = "cuda"}, {{"gpus", {gpu(0, exclusive)}}});
  for (const bool dry : {true, false}) {
    const Result refused = launch(dry ? std::vector<std::string>{"--dry-run"} : std::vector<std::string>());
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("process 999999999 (3.0 MiB of its memory), and admits only one process"));
    EXPECT_THAT(refused.err, HasSubstr("nvidia-smi -i 0 -c DEFAULT"));
  }
}

TEST_F(GpuRun, WhatGpusDoNotSupportIsRefused) {
  make({.slots = 1, .slot_type = "auto"}, gpus(1));
  const Result refused = launch({"--set", "optimizations.sharded_gradients=true"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(
      refused.err,
      HasSubstr("experiment.yaml: optimizations.sharded_gradients: cannot be true on GPUs, where NCCL keeps the "
                "memory of whole gradients registered; leave it at auto"));
  Command alone(run().folder(),
                {rank_program(), run().experiment(), "--run-dir", run().run_dir(), "--set",
                 "optimizations.sharded_gradients=true"},
                environment());
  EXPECT_EQ(alone.wait().code, 2);
  EXPECT_THAT(alone.err(), HasSubstr("cannot be true on GPUs"));
}

TEST_F(GpuRun, VariablesOfGpusAreThoseOfRanksOnGpus) {
  make({.slots = 1, .entrypoint = "[/bin/sh, -c, env]", .slot_type = "auto"}, gpus(1));
  const std::string variables = "environment.environment_variables={cpu: [COLOUR=grey], cuda: [COLOUR=green]}";
  launch({"--set", variables});
  EXPECT_THAT(run().log(0), HasSubstr("COLOUR=green\n"));
}

TEST_F(GpuRun, UnusedGpusAreTold) {
  make({.slots = 1, .slot_type = "auto"}, gpus(2));
  std::ofstream(run().folder() / "cluster.yaml") << "agents: [{id: a, host: localhost, slots: 2, slot_type: cpu}]\n";
  const Result automatic = launch({"--dry-run"});
  EXPECT_THAT(automatic.err,
              HasSubstr("warning: this machine has 2 GPUs (Fake, Fake), which are not used: the resource "
                        "pool default of cluster.yaml has no GPU slots; resources.slot_type: cpu says"));
  EXPECT_THAT(automatic.out, HasSubstr(", cores; not used: 2 GPUs (Fake, Fake)\n"));
  EXPECT_THAT(launch({"--dry-run", "--set", "resources.slot_type=cpu"}).err, Not(HasSubstr("GPU")));
  EXPECT_THAT(launch({"--dry-run"}, {{"CUDA_VISIBLE_DEVICES", "-1"}}).err, Not(HasSubstr("GPU")));
}

TEST_F(GpuRun, ARankAloneTakesTheFirst) {
  make({.slots = 1, .batches = 2, .hyperparameters = kShowPlace, .slot_type = "auto"}, gpus(2));
  Command alone(run().folder(), {rank_program(), run().experiment(), "--run-dir", run().run_dir()}, environment());
  EXPECT_EQ(alone.wait().code, 0) << alone.err();
  EXPECT_THAT(place(0), HasSubstr("place: gpu 0 of unset (unset)"));
  const Json plan = read_json(run().run_dir() / "plan.json");
  EXPECT_EQ(plan.at("slot_type"), "cuda");
  EXPECT_EQ(plan.at("ranks")[0].at("gpu").at("uuid"), "GPU-0");
}

TEST_F(GpuRun, ARankAloneWithoutAGpuIsToldWhy) {
  make({.slots = 1, .slot_type = "cuda"}, gpus(2));
  Command alone(run().folder(), {rank_program(), run().experiment(), "--run-dir", run().run_dir()},
                environment({{"CUDA_VISIBLE_DEVICES", "7"}}));
  EXPECT_EQ(alone.wait().code, 2);
  EXPECT_THAT(alone.err(), HasSubstr("resources.slot_type is cuda, but host "));
  EXPECT_THAT(alone.err(), HasSubstr("no GPU is visible to rank 0: CUDA_VISIBLE_DEVICES=7 hides its 2 GPUs"));
  EXPECT_FALSE(fs::exists(run().run_dir()));
}

// What torchrun sets.
std::map<std::string, std::string> as_rank(int rank) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", "2"},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(20000 + ::getpid() % 20000)}};
}

class TwoRanksByHand : public GpuRun {
 protected:
  // Their codes, and rank 0's errors.
  std::string start(const std::string& visible_to_0, const std::string& visible_to_1) {
    fs::create_directory(run().folder() / "second");
    const std::vector<std::string> command{rank_program(), run().experiment(), "--run-dir", run().run_dir()};
    const auto of_rank = [&](int rank, const std::string& visible) {
      auto variables = environment(as_rank(rank));
      variables["XDG_RUNTIME_DIR"] = run().folder();
      if (visible != "all") variables["CUDA_VISIBLE_DEVICES"] = visible;
      return variables;
    };
    Command second(run().folder() / "second", command, of_rank(1, visible_to_1));
    Command first(run().folder(), command, of_rank(0, visible_to_0));
    const int code = first.wait().code;
    return std::to_string(code) + " " + std::to_string(second.wait().code) + " " + first.err();
  }
};

TEST_F(TwoRanksByHand, ShareOutWhatBothSee) {
  make({.batches = 2, .hyperparameters = kShowPlace, .slot_type = "auto"}, gpus(2));
  EXPECT_THAT(start("all", "all"), testing::StartsWith("0 0 "));
  EXPECT_THAT(place(0) + place(1), testing::ContainsRegex("gpu 0 of unset.*gpu 1 of unset"));
}

TEST_F(TwoRanksByHand, TakeWhatEachSees) {
  make({.batches = 2, .hyperparameters = kShowPlace, .slot_type = "cuda"}, gpus(2));
  EXPECT_THAT(start("1", "0"), testing::StartsWith("0 0 "));
  EXPECT_THAT(place(0) + place(1), testing::ContainsRegex("gpu 0 of 1 .*gpu 0 of 0 "));
  EXPECT_EQ(read_json(run().run_dir() / "plan.json").at("ranks")[0].at("gpu").at("uuid"), "GPU-1");
}

TEST_F(TwoRanksByHand, WithOneGpuTrainOnCpusOrNotAtAll) {
  make({.batches = 2, .hyperparameters = kShowPlace, .slot_type = "auto"}, gpus(1));
  const std::string on_cpus = start("all", "all");
  EXPECT_THAT(on_cpus, testing::StartsWith("0 0 "));
  EXPECT_THAT(on_cpus, HasSubstr("this machine has 1 GPU (Fake), which are not used: host "));
  EXPECT_THAT(on_cpus, HasSubstr("2 ranks, but ranks 0 and 1 see one GPU, the same (GPU-0)"));
  EXPECT_THAT(place(1), HasSubstr("place: no gpu"));
  make({.batches = 2, .slot_type = "cuda"}, gpus(1));
  const std::string refused = start("all", "all");
  EXPECT_THAT(refused, testing::StartsWith("2 2 "));
  EXPECT_THAT(refused, HasSubstr("2 ranks, but ranks 0 and 1 see one GPU, the same (GPU-0)"));
  EXPECT_FALSE(fs::exists(run().run_dir()));
}

TEST_F(GpuRun, ByMpirunEachRankIsToldOnItsHost) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  make({.batches = 2, .hyperparameters = kShowPlace, .slot_type = "auto"}, gpus(3));
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  std::ofstream(run().folder() / "cluster.yaml")
      << "agents: [{id: a, host: " << host << ", slots: 1}, {id: b, host: " << host << ", slots: 1}]\n"
      << "launcher: {type: mpi, options: [--oversubscribe]}\n";
  const Result launched = launch({"--cluster", run().folder() / "cluster.yaml"}, {{"CUDA_VISIBLE_DEVICES", "2,1"}});
  ASSERT_EQ(launched.code, 0) << launched.out << launched.err;
  EXPECT_THAT(place(0), HasSubstr("place: gpu 0 of GPU-2,GPU-1 (PCI_BUS_ID), cpus"));
  EXPECT_THAT(place(1), HasSubstr("place: gpu 1 of GPU-2,GPU-1 (PCI_BUS_ID), cpus"));
  const Json ranks = read_json(run().run_dir() / "plan.json").at("ranks");
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(place(rank), testing::EndsWith(", cpus" + cpus_of(ranks[static_cast<std::size_t>(rank)])));
  }
}

TEST_F(GpuRun, ByMpirunAloneTheRanksChoose) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  make({.batches = 2, .hyperparameters = kShowPlace, .slot_type = "auto"}, gpus(2));
  Command mpirun(run().folder(),
                 {"mpirun", "--oversubscribe", "--allow-run-as-root", "-np", "2", rank_program(), run().experiment(),
                  "--run-dir", run().run_dir()},
                 environment());
  EXPECT_EQ(mpirun.wait().describe(), "exit status 0") << mpirun.err();
  EXPECT_THAT(place(1), HasSubstr("place: gpu 1 of unset"));
  EXPECT_EQ(read_json(run().run_dir() / "plan.json").at("ranks")[1].at("gpu").at("uuid"), "GPU-1");
}

}  // namespace
}  // namespace dtrain
