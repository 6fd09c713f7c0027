// Launches that queue for the same slots, and the commands that see, stop and await them.
#include <gmock/gmock.h>

#include <map>
#include <set>
#include <sstream>

#include "dtrain/base/text.h"
#include "queued_launches.h"

namespace dtrain {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

// An experiment on a cluster of two slots, launched several times.
class Queue : public QueuedLaunches {
 protected:
  Queue() : QueuedLaunches({.batches = 20}) {}

  // One that goes on until it is stopped, and holds its slots by now.
  Command& endless() {
    Command& command = launch({"--set", "searcher.max_length.batches=1000000"});
    const auto log = folder(launches_.size()) / "run" / "logs" / "rank-0000.log";
    EXPECT_TRUE(eventually([&] { return slurp(log).find("batch 3\n") != std::string::npos; })) << command.err();
    return command;
  }
  // After it said so.
  Command& queued(const std::vector<std::string>& options = {}) {
    Command& command = launch(options);
    EXPECT_TRUE(eventually([&] { return command.says("queued "); })) << command.out() << command.err();
    return command;
  }
  std::string state(int id) { return show(id).at("state"); }
};

// Tasks are numbered by the ledger, runs by the folder that they are launched from: here task 2 is run 1.
TEST_F(Queue, ATaskAndItsRunAreFoundByEitherNumber) {
  EXPECT_EQ(launch().wait().describe(), "exit status 0");
  const fs::path work = run_.folder() / "work";
  fs::create_directory(work);
  Command other(work, {bin("dtrain"), "launch", run_.experiment(), "--cluster", run_.folder() / "cluster.yaml"},
                environment());
  EXPECT_EQ(other.wait().describe(), "exit status 0") << other.err();
  const auto said = [&](std::vector<std::string> words) {
    words.insert(words.begin(), bin("dtrain"));
    Command command(work, words, environment());
    command.wait();
    return command.out() + command.err();
  };
  for (const char* task : {"2", "task:2", "run:1", "run:test"}) {
    EXPECT_EQ(Json::parse(said({"task", "show", task, "--json"})).at("id"), 2) << task;
    EXPECT_THAT(said({"task", "wait", task}), HasSubstr("task 2 done")) << task;
    EXPECT_THAT(said({"task", "kill", task}), HasSubstr("task 2 has already ended: done")) << task;
  }
  for (const char* run : {"1", "run:1", "task:2", "test"}) {
    EXPECT_THAT(said({"logs", run, "--rank", "0"}), HasSubstr("batch 20")) << run;
    EXPECT_EQ(Json::parse(said({"top", run, "--once", "--json"})).at("run_dir"), (work / "runs" / "0001-test").string())
        << run;
  }
  EXPECT_EQ(Json::parse(said({"top", "task:1", "--once", "--json"})).at("run_dir"), (folder(1) / "run").string());
  EXPECT_THAT(said({"summary", "task:7"}), HasSubstr("there is no task 7"));
  EXPECT_THAT(said({"task", "show", "mnist"}), HasSubstr("'mnist' is not the number of a task"));
  EXPECT_THAT(said({"task", "show", "run:2"}), HasSubstr("no run '2'"));
}

TEST_F(Queue, TheSecondWaitsBehindTheFirstAndThenTrains) {
  Command& first = endless();
  EXPECT_EQ(state(1), "running");
  Command& second = queued();
  EXPECT_THAT(second.out(), HasSubstr("queued      task 2 waits: task 1 (test) holds 2 of 2 slots of here\n"));
  EXPECT_THAT(second.out(), Not(HasSubstr("cores_per_slot"))) << "the slots are declared";
  const Json list = Json::parse(task({"list", "--json"}).out);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].at("state"), "running");
  EXPECT_EQ(list[0].at("agents"), Json({"here"}));
  EXPECT_EQ(list[0].at("behind"), nullptr);
  EXPECT_EQ(list[1].at("state"), "queued");
  EXPECT_EQ(list[1].at("behind"), Json({1}));
  EXPECT_EQ(list[1].at("reason"), "task 1 (test) holds 2 of 2 slots of here");
  EXPECT_EQ(list[1].at("priority"), 42);
  EXPECT_THAT(task({"list"}).out, HasSubstr("waits behind"));
  EXPECT_THAT(task({"list", "--csv"}).out,
              HasSubstr("\n2,test,queued,2,,,,42,1,task 1 (test) holds 2 of 2 slots of here,"));

  EXPECT_THAT(task({"kill", "1"}).out, HasSubstr("task 1 was asked to stop"));
  EXPECT_EQ(first.wait().describe(), "exit status 130") << first.err();
  EXPECT_THAT(first.out(), HasSubstr("dtrain task kill: stopping after the current step"));
  EXPECT_EQ(second.wait().describe(), "exit status 0") << second.out() << second.err();
  EXPECT_EQ(show(1).at("state"), "interrupted");
  EXPECT_EQ(show(1).at("reason"), "dtrain task kill");
  const Json shown = show(2);
  std::vector<std::string> states;
  for (const Json& change : shown.at("history")) states.push_back(change.at("state"));
  EXPECT_THAT(states, testing::ElementsAre("queued", "starting", "running", "done"));
  EXPECT_EQ(shown.at("claim"), Json::parse(R"([{"agent": "here", "slots": [0, 1]}])"));
  EXPECT_EQ(shown.at("exit_code"), 0);
  EXPECT_THAT(task({"list", "--active", "--json"}).out, "[]\n");
  EXPECT_THAT(task({"kill", "2"}).out, HasSubstr("has already ended: done (exit code 0)"));
}

TEST_F(Queue, PrioritiesDecideWhoIsNext) {
  Command& first = endless();
  Command& late = queued();
  Command& urgent = queued({"--set", "resources.priority=1"});
  EXPECT_THAT(urgent.out(), HasSubstr("task 1 (test) holds")) << "nobody else is before it";
  EXPECT_TRUE(eventually([&] { return late.says("then task 3 (test) goes first"); })) << late.out();
  first.kill(SIGTERM);
  EXPECT_EQ(urgent.wait().code, 0);
  EXPECT_EQ(late.wait().code, 0);
  EXPECT_LT(show(3).at("started").get<std::string>(), show(2).at("started").get<std::string>());
}

TEST_F(Queue, OneThatIsInterruptedWhileItWaitsHasStartedNothing) {
  endless();
  Command& second = queued();
  second.kill(SIGINT);
  EXPECT_EQ(second.wait().describe(), "exit status 130");
  EXPECT_THAT(second.out(), HasSubstr("interrupted: SIGINT while it was queued"));
  EXPECT_EQ(state(2), "interrupted");
  EXPECT_FALSE(fs::exists(folder(2) / "run" / "plan.json"));
  Command& third = queued();
  task({"kill", "3"});
  EXPECT_EQ(third.wait().describe(), "exit status 130");
}

TEST_F(Queue, MaxSlotsHoldsBackItsOwnExperiment) {
  const std::vector<std::string> limited{"--set", "resources={slots_per_trial: 1, max_slots: 1}"};
  Command& first = launch({limited[0], limited[1], "--set", "searcher.max_length.batches=1000000"});
  ASSERT_TRUE(eventually([&] { return first.says("batch 3"); })) << first.err();
  Command& second = queued(limited);
  EXPECT_THAT(second.out(), HasSubstr("task 1 (test) has 1 of the 1 slots that max_slots allows"));
  Command& other = launch({"--set", "resources.slots_per_trial=1", "--set", "name=other"});
  EXPECT_EQ(other.wait().code, 0) << "the second slot is free for others";
  first.kill(SIGTERM);
  EXPECT_EQ(second.wait().code, 0);
}

TEST_F(Queue, WaitEndsAsTheTaskDoes) {
  launch();
  launch({"--set", "hyperparameters.trouble={rank: 1, batch: 7, kind: exception}", "--set", "name=fails"});
  ASSERT_TRUE(eventually([&] { return Json::parse(task({"list", "--json"}).out).size() == 2; }));
  // Whichever came first.
  const int fails = show(1).at("name") == "fails" ? 1 : 2;
  const Result failed = task({"wait", std::to_string(fails)});
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.out, HasSubstr("failed (exit code 1): rank 1 failed at batch 7: the model makes no sense"));
  EXPECT_EQ(task({"wait", std::to_string(3 - fails)}).code, 0);
  for (auto& launch : launches_) launch->wait();
  for (const char* command : {"wait", "show", "kill"}) {
    const Result none = task({command, "99"});
    EXPECT_EQ(none.code, 2) << command;
    EXPECT_THAT(none.err, HasSubstr("there is no task 99"));
  }
}

TEST_F(Queue, ASecondKillIsAtOnce) {
  Command& hangs = launch({"--set", "searcher.max_length.batches=1000000", "--set",
                           "hyperparameters.trouble={rank: 1, batch: 7, kind: hang}"});
  const auto log = folder(1) / "run" / "logs" / "rank-0001.log";
  ASSERT_TRUE(eventually([&] { return slurp(log).find("batch 6\n") != std::string::npos; }));
  task({"kill", "1"});
  EXPECT_TRUE(eventually([&] { return hangs.says("stopping after the current step"); }));
  EXPECT_EQ(state(1), "stopping");
  EXPECT_THAT(task({"kill", "1"}).out, HasSubstr("its ranks are being killed"));
  EXPECT_EQ(hangs.wait().describe(), "exit status 130") << hangs.err();
}

TEST_F(Queue, TheSlotsOfAKilledLauncherComeFreeWhenItsRanksAreGone) {
  Command& first = endless();
  Command& second = queued();
  first.kill(SIGKILL);
  first.wait();
  EXPECT_EQ(second.wait().describe(), "exit status 0") << second.out() << second.err();
  EXPECT_EQ(state(1), "failed");
  EXPECT_THAT(show(1).at("reason").get<std::string>(), HasSubstr("is gone without a word"));
  // When the second started, no rank of the first was left.
  const std::string started = show(2).at("started");
  for (const Json& event : read_lines(folder(1) / "run" / "events.jsonl")) {
    if (event.at("event") == "rank_finished") {
      EXPECT_LT(event.at("time").get<std::string>(), started);
    }
  }
}

TEST_F(Queue, DetachedItOutlivesTheTerminal) {
  Command& first = endless();
  const std::string command = bin("dtrain") + " launch " + run_.experiment().string() + " --detach --cluster " +
                              (run_.folder() / "cluster.yaml").string() + " --run-dir detached";
  // The shell is what a terminal would hang up on, with all of its group.
  Command shell(run_.folder(), {"/bin/bash", "-c", command + "; echo \"code $?\"; kill -HUP 0; sleep 60"},
                environment());
  EXPECT_EQ(shell.wait().signal, SIGHUP);
  EXPECT_THAT(shell.out(), HasSubstr("task        2\nrun         " + (run_.folder() / "detached").string() + "\n"));
  EXPECT_THAT(shell.out(), HasSubstr("queued      task 2 waits: task 1 (test) holds"));
  EXPECT_THAT(shell.out(), HasSubstr("code 0"));
  EXPECT_EQ(state(2), "queued");
  const fs::path owner = run_.folder() / "detached" / ".owner";
  EXPECT_TRUE(eventually([&] {  // the launcher, not the process that has started it
    const Json said = Json::parse(slurp(owner), nullptr, /*allow_exceptions=*/false);
    return said.is_object() && is_alive(said.at("pid").get<pid_t>());
  }));
  const fs::path folder = run_.folder() / "follow";
  fs::create_directory(folder);
  Command logs(folder, {bin("dtrain"), "logs", "-f", run_.folder() / "detached"}, environment());
  first.kill(SIGTERM);
  EXPECT_EQ(task({"wait", "2"}).code, 0);
  EXPECT_EQ(logs.wait().code, 0) << logs.err();
  EXPECT_THAT(logs.out(), HasSubstr("[rank=1] batch 20\n"));
  const std::string log = slurp(run_.folder() / "detached" / "logs" / "launcher.log");
  EXPECT_THAT(log, HasSubstr("batch 20/20 (100%)"));
  EXPECT_THAT(log, HasSubstr("written to " + (run_.folder() / "detached").string()));
}

TEST_F(Queue, WhatIsWrongIsToldBeforeItDetaches) {
  const Result wrong = dtrain(run_, {"launch", run_.experiment(), "--detach", "--set", "resources.slots_per_trial=0"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("slots_per_trial"));
  EXPECT_EQ(dtrain(run_, {"launch", run_.experiment(), "--detach", "--dry-run"}).code, 2);
}

// On this machine without a cluster file, where slots are made of its cores.
class Cores : public Queue {
 protected:
  Cores() {
    fs::remove(run_.folder() / "cluster.yaml");
    cores_ = static_cast<int>(Json::parse(dtrain(run_, {"slot", "list", "--json"}, environment()).out).size());
  }
  Command& on_cores(int slots, const std::string& cores_per_slot, bool endless = true) {
    const fs::path own = folder(launches_.size() + 1);
    fs::create_directory(own);
    launches_.push_back(std::make_unique<Command>(
        own,
        std::vector<std::string>{bin("dtrain"), "launch", run_.experiment(), "--run-dir", own / "run", "--set",
                                 "resources.slots_per_trial=" + std::to_string(slots), "--set",
                                 "resources.cores_per_slot=" + cores_per_slot, "--set",
                                 "hyperparameters.global_batch_size=4096", "--set",
                                 "searcher.max_length.batches=" + std::string(endless ? "1000000" : "20")},
        environment()));
    return *launches_.back();
  }
  // The CPUs that the kernel lets the only rank of this launch run on, once it trains.
  std::string cpus_of_rank(std::size_t number) const {
    const fs::path run = folder(number) / "run";
    EXPECT_TRUE(
        eventually([&] { return slurp(run / "logs" / "rank-0000.log").find("batch 3\n") != std::string::npos; }));
    for (const Json& event : read_lines(run / "events.jsonl")) {
      if (event.value("event", "") != "rank_started") continue;
      std::istringstream status(slurp("/proc/" + event.at("pid").dump() + "/status"));
      for (std::string line; std::getline(status, line);) {
        if (line.starts_with("Cpus_allowed_list:\t")) return line.substr(line.find('\t') + 1);
      }
    }
    return "none";
  }

  int cores_ = 0;
};

TEST_F(Cores, ExperimentsWithCoresOfTheirOwnRunBesideEachOther) {
  if (cores_ < 2) GTEST_SKIP() << "one core cannot be divided";
  Command& first = on_cores(1, "1");
  const std::string of_first = cpus_of_rank(1);
  Command& second = on_cores(1, "1");
  const std::string of_second = cpus_of_rank(2);
  EXPECT_NE(of_first, of_second) << "they share a core";
  const Json slots = Json::parse(dtrain(run_, {"slot", "list", "--json"}, environment()).out);
  std::map<int, std::string> cpus;  // by task
  for (const Json& core : slots) {
    if (core.at("task") == nullptr) continue;
    std::string text;
    for (const Json& cpu : core.at("cpus")) text += (text.empty() ? "" : ",") + cpu.dump();
    EXPECT_TRUE(cpus.emplace(core.at("task").get<int>(), text).second) << "a task of one core holds two";
  }
  EXPECT_EQ(cpus, (std::map<int, std::string>{{1, of_first}, {2, of_second}}));
  EXPECT_EQ(show(1).at("cores_per_slot"), 1);
  EXPECT_EQ(show(1).at("claim").at(0).at("cores").size(), 1u);
  EXPECT_THAT(task({"show", "1"}).out, HasSubstr("slots       1 slot x 1 core\n"));

  // Who takes all cores waits for both, and hears what would let it run beside.
  Command& all = on_cores(1, "auto", false);
  const std::string who_holds = "tasks 1 (test), 2 (test) hold 2 of " + std::to_string(cores_) + " cores of ";
  EXPECT_TRUE(eventually([&] { return all.says(who_holds); })) << all.out() << all.err();
  second.kill(SIGTERM);
  second.wait();
  const std::string beside = "; with resources.cores_per_slot: " + std::to_string(cores_ - 1) + " it runs beside";
  EXPECT_TRUE(eventually([&] { return all.says(beside); })) << all.out() << all.err();
  EXPECT_THAT(task({"list"}).out, HasSubstr("cores_per_slot: auto takes all of them"));
  EXPECT_EQ(state(3), "queued");

  // What it was told is true.
  Command& taken = on_cores(1, std::to_string(cores_ - 1), false);
  EXPECT_TRUE(eventually([&] { return taken.says("task 3 (test) goes first"); })) << "not before the third task";
  taken.kill(SIGTERM);
  taken.wait();
  all.kill(SIGTERM);
  all.wait();
  Command& other = on_cores(1, std::to_string(cores_ - 1), false);
  EXPECT_EQ(other.wait().code, 0) << other.out() << other.err();
  first.kill(SIGTERM);
  first.wait();
}

TEST_F(Cores, TwoThatAskForAllRunBesideEachOtherWithTheNumberTheyAreTold) {
  if (cores_ < 2) GTEST_SKIP() << "one core cannot be divided";
  Command& first = on_cores(1, "auto");
  ASSERT_TRUE(eventually([&] { return first.says("batch 3"); })) << first.err();
  Command& second = on_cores(1, "auto");
  const std::string each = std::to_string(cores_ / 2);
  EXPECT_TRUE(eventually([&] { return second.says(" they run beside each other"); })) << second.out() << second.err();
  EXPECT_THAT(second.out(), HasSubstr("task 1 (test) holds " + std::to_string(cores_) + " of " +
                                      std::to_string(cores_) + " cores of "));
  EXPECT_THAT(second.out(), HasSubstr(", and cores_per_slot: auto takes all of them; with resources.cores_per_slot: " +
                                      each + " in each of them they run beside each other\n"));
  EXPECT_EQ(state(2), "queued");
  second.kill(SIGTERM);
  second.wait();
  first.kill(SIGTERM);
  first.wait();

  on_cores(1, each);
  on_cores(1, each);
  std::set<int> taken;
  for (const std::size_t number : {std::size_t{3}, std::size_t{4}}) {
    const std::string bound = cpus_of_rank(number);
    const Json rank = read_json(folder(number) / "run" / "plan.json").at("ranks").at(0);
    EXPECT_EQ(bound, ranges_text(rank.at("cpus").get<std::vector<int>>())) << "bound as the plan says";
    EXPECT_EQ(rank.at("cores"), cores_ / 2);
    EXPECT_EQ(rank.at("threads"), cores_ / 2);
    for (const int cpu : rank.at("cpus").get<std::vector<int>>()) EXPECT_TRUE(taken.insert(cpu).second) << cpu;
  }
  EXPECT_EQ(state(3), "running");
  EXPECT_EQ(state(4), "running");
}

TEST_F(Cores, MoreSlotsThanThereAreRunAlone) {
  Command& many = on_cores(cores_ + 1, "auto");
  ASSERT_TRUE(eventually([&] { return many.says("batch 3"); })) << many.err();
  EXPECT_THAT(many.err(), HasSubstr("warning: oversubscribed"));
  Command& one = on_cores(1, "auto", false);
  EXPECT_TRUE(eventually([&] { return one.says("cores_per_slot: auto takes all of them"); })) << one.out() << one.err();
  many.kill(SIGTERM);
  EXPECT_EQ(one.wait().code, 0) << one.err();
  Command& refused = on_cores(cores_ + 1, "1");
  EXPECT_EQ(refused.wait().code, 2);
  EXPECT_THAT(refused.err(), HasSubstr("slots x 1 core never fit"));
  EXPECT_THAT(refused.err(), HasSubstr("resources.cores_per_slot: auto, with which slots share cores"));
}

TEST_F(Queue, TheLedgersFolderIsTheUsers) {
  const Result relative = dtrain(run_, {"task", "list"}, {{"DTRAIN_STATE_DIR", "here"}});
  EXPECT_EQ(relative.code, 2);
  EXPECT_THAT(relative.err, HasSubstr("DTRAIN_STATE_DIR=here is not an absolute path"));
  const Result impossible = dtrain(run_, {"launch", run_.experiment()}, {{"DTRAIN_STATE_DIR", "/proc/none"}});
  EXPECT_NE(impossible.code, 0);
  EXPECT_THAT(impossible.err, HasSubstr("/proc/none"));
  EXPECT_FALSE(fs::exists(run_.folder() / "runs")) << "no run was begun";
}

}  // namespace
}  // namespace dtrain
