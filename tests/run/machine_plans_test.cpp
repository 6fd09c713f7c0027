// Plans of launches on machines that are not here: placement, binding, threads, and what people read. The machines were
// recorded (tests/topologies).
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "commands/job_command.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "machine_limits.h"
#include "plan/launch_plan.h"
#include "run_harness.h"

namespace dtrain::launcher {
namespace {

using testing::ElementsAre;
using testing::Eq;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class MachinePlans : public testing::Test {
 protected:
  MachinePlans() { variables_ = {{"XDG_CACHE_HOME", folder_.path() / "cache"}, {"HOME", folder_.path()}}; }

  // `cpu_limit`: as a cgroup grants it; 0: no limit.
  PlacedLaunch plan(const std::string& machine, const std::string& resources, double cpu_limit = 0,
                    const std::string& cluster = "") {
    const fs::path experiment = folder_.path() / "experiment.yaml";
    write_file_atomic(experiment,
                      "name: test\nentrypoint: /bin/true\nhyperparameters: {global_batch_size: 96}\n"
                      "resources: {slot_type: cpu, " +
                          resources + "}\nsearcher: {max_length: {batches: 1}}\n" + more_);
    LaunchRequest request{.experiment_file = experiment};
    if (!cluster.empty()) {
      request.cluster = folder_.path() / "cluster.yaml";
      write_file_atomic(request.cluster, cluster);
    }
    request.machine.emplace();
    request.machine->name = "box";
    request.machine->topology.xml = DTRAIN_SOURCE_DIR "/tests/topologies/" + machine + ".xml";
    request.machine->cpu_limit = cpu_limit > 0 ? cpu_limit : 100'000;
    request.machine->gpus.emplace();
    const LaunchPlan made = make_launch_plan({request}, variables_);
    return place_launch(made, made.first_slots, variables_);
  }
  std::string refusal(const std::string& machine, const std::string& resources, double cpu_limit = 0,
                      const std::string& cluster = "") {
    try {
      plan(machine, resources, cpu_limit, cluster);
    } catch (const ConfigError& error) {
      return std::string(error.what()) + "\n  " + error.remedy();
    }
    return "it was accepted";
  }
  // `each`: 0: auto.
  static std::string resources_of(int slots, int each) {
    return "slots_per_trial: " + std::to_string(slots) +
           ", cores_per_slot: " + (each == 0 ? "auto" : std::to_string(each));
  }
  static std::vector<std::string> cpus_of(const PlacedLaunch& plan) {
    std::vector<std::string> cpus;
    for (const rank::RankPlacement& rank : plan.ranks) cpus.push_back(ranges_text(rank.cpus));
    return cpus;
  }
  static std::vector<int> threads_of(const PlacedLaunch& plan) {
    std::vector<int> threads;
    for (const rank::RankPlacement& rank : plan.ranks) threads.push_back(rank.threads);
    return threads;
  }
  // The row of render_plan().
  static std::string row(const PlacedLaunch& plan, const std::string& name) {
    std::istringstream text(render_plan(plan));
    for (std::string line; std::getline(text, line);) {
      if (line.starts_with(name + " ")) return line.substr(12);
    }
    return "none";
  }

  TemporaryFolder folder_;
  rank::Variables variables_;
  std::string more_;  // of the experiment
};

TEST_F(MachinePlans, OneSocketOfFourCores) {
  const PlacedLaunch one = plan("one_by_four", "slots_per_trial: 1");
  EXPECT_THAT(cpus_of(one), ElementsAre("0-3"));
  EXPECT_THAT(threads_of(one), ElementsAre(4));
  EXPECT_EQ(row(one, "slots"), "1 slot x 4 cores, of 4");
  EXPECT_EQ(row(one, "threads"), "none") << "there is nothing to choose";
  EXPECT_EQ(thread_variables(one, one.ranks[0], {}).at("OMP_NUM_THREADS"), "4");
  EXPECT_THAT(render_plan(one), HasSubstr("rank  host              cpus      threads  batch\n"));
  const Json json = to_json(one);
  EXPECT_EQ(json.at("slots"), "1 slot x 4 cores");
  EXPECT_EQ(json.at("threads"), (Json{{"per_rank", 4}, {"why", "one thread per core"}}));
  EXPECT_EQ(json.at("ranks")[0].at("cores"), 4);
  EXPECT_EQ(json.at("ranks")[0].at("threads"), 4);

  const PlacedLaunch three = plan("one_by_four", "slots_per_trial: 3");
  EXPECT_THAT(cpus_of(three), ElementsAre("0", "1", "2,3"));
  EXPECT_THAT(threads_of(three), ElementsAre(1, 1, 1)) << "ranks are alike";
  EXPECT_EQ(row(three, "slots"), "3 slots x 1 to 2 cores, of 4");

  const PlacedLaunch some = plan("one_by_four", "slots_per_trial: 1, cores_per_slot: 3");
  EXPECT_THAT(cpus_of(some), ElementsAre("0-2"));
  EXPECT_EQ(row(some, "slots"), "1 slot x 3 cores, of 4");

  const PlacedLaunch many = plan("one_by_four", "slots_per_trial: 6");
  EXPECT_THAT(cpus_of(many), ElementsAre("0", "0", "1", "2", "2", "3"));
  EXPECT_THAT(many.warnings, testing::Contains(HasSubstr("oversubscribed: 6 slots on 4 cores")));
  EXPECT_EQ(
      refusal("one_by_four", "slots_per_trial: 3, cores_per_slot: 2"),
      "this machine: 3 slots x 2 cores never fit on this cluster, even when all of it is free\n"
      "  box has 4 cores: room for 2 slots x 2 cores\n"
      "  the nearest resources.slots_per_trial that fits: 2; or resources.cores_per_slot: 1, or auto (all cores)");
  EXPECT_THAT(refusal("one_by_four", "slots_per_trial: 1, cores_per_slot: 8"),
              HasSubstr("box has 4 cores: room for no slot of 8 cores\n  resources.cores_per_slot: 4, or auto"));
}

TEST_F(MachinePlans, TwoSocketsWithSiblings) {
  const PlacedLaunch two = plan("two_sockets_smt", "slots_per_trial: 2");
  EXPECT_THAT(cpus_of(two), ElementsAre("0-31,64-95", "32-63,96-127")) << "a socket each, with the siblings";
  EXPECT_THAT(threads_of(two), ElementsAre(32, 32));
  EXPECT_EQ(row(two, "slots"), "2 slots x 32 cores, of 64");
  EXPECT_EQ(row(two, "threads"),
            "32 a rank, one thread per core; whether a thread on each logical CPU is faster was not measured");
  EXPECT_THAT(render_plan(two), HasSubstr("cpus          threads  batch\n"));
  EXPECT_THAT(render_plan(two), HasSubstr("0-31,64-95         32     48\n"));

  const PlacedLaunch one = plan("two_sockets_smt", "slots_per_trial: 1");
  EXPECT_THAT(cpus_of(one), ElementsAre("0-127"));
  EXPECT_THAT(threads_of(one), ElementsAre(64));
  const PlacedLaunch some = plan("two_sockets_smt", "slots_per_trial: 2, cores_per_slot: 8");
  EXPECT_THAT(cpus_of(some), ElementsAre("0-7,64-71", "8-15,72-79"));
}

TEST_F(MachinePlans, SiblingsAreUsedWhereTheyWereMeasuredToHelp) {
  const LimitsCache cache(rank::cache_folder(variables_));
  profile::RankLimits limits;
  limits.cpu = "x";
  limits.ranks = 2;
  limits.memory_gb_s = 100;
  limits.gflops_by_threads = {{32, 2000}, {64, 2300}};
  limits.threads = 64;
  cache.store(limits_key(32, 2, 64), limits);
  const PlacedLaunch helped = plan("two_sockets_smt", "slots_per_trial: 2");
  EXPECT_THAT(threads_of(helped), ElementsAre(64, 64));
  EXPECT_EQ(row(helped, "threads"),
            "64 a rank, a thread on each logical CPU: 2000 GFLOP/s (float32 products) with 32 threads, 2300 with 64");
  EXPECT_THAT(cpus_of(helped), ElementsAre("0-31,64-95", "32-63,96-127")) << "bound to whole cores either way";
  limits.threads = 32;
  limits.gflops_by_threads[64] = 1900;
  cache.store(limits_key(32, 2, 64), limits);
  const PlacedLaunch not_helped = plan("two_sockets_smt", "slots_per_trial: 2");
  EXPECT_THAT(threads_of(not_helped), ElementsAre(32, 32));
  EXPECT_THAT(row(not_helped, "threads"), StartsWith("32 a rank, one thread per core: 2000 GFLOP/s"));
  variables_["OMP_NUM_THREADS"] = "7";
  const PlacedLaunch own = plan("two_sockets_smt", "slots_per_trial: 2");
  EXPECT_THAT(threads_of(own), ElementsAre(7, 7));
  EXPECT_EQ(row(own, "threads"), "7 a rank, OMP_NUM_THREADS is set");
  variables_.erase("OMP_NUM_THREADS");
  more_ = "environment: {environment_variables: [OMP_NUM_THREADS=5]}\n";
  EXPECT_THAT(threads_of(plan("two_sockets_smt", "slots_per_trial: 2")), ElementsAre(5, 5));
}

TEST_F(MachinePlans, FourNodes) {
  EXPECT_THAT(cpus_of(plan("four_nodes", "slots_per_trial: 4")), ElementsAre("0-7", "8-15", "16-23", "24-31"));
  EXPECT_THAT(cpus_of(plan("four_nodes", "slots_per_trial: 2")), ElementsAre("0-15", "16-31"));
  EXPECT_THAT(cpus_of(plan("four_nodes", "slots_per_trial: 2, cores_per_slot: 5")), ElementsAre("0-4", "8-12"))
      << "neither crosses a node";
  EXPECT_EQ(row(plan("four_nodes", "slots_per_trial: 8"), "slots"), "8 slots x 4 cores, of 32");
}

TEST_F(MachinePlans, ACgroupOfTenOnNinetySixCores) {
  const PlacedLaunch one = plan("ninety_six", "slots_per_trial: 1", 10);
  EXPECT_THAT(cpus_of(one), ElementsAre("0-95")) << "where its time is spent, the kernel decides";
  EXPECT_THAT(threads_of(one), ElementsAre(10));
  EXPECT_EQ(row(one, "slots"), "1 slot x 96 cores, of 96; 10 may be used at once");
  const PlacedLaunch two = plan("ninety_six", "slots_per_trial: 2", 10);
  EXPECT_THAT(threads_of(two), ElementsAre(5, 5));
  const PlacedLaunch three = plan("ninety_six", "slots_per_trial: 3", 10);
  EXPECT_THAT(threads_of(three), ElementsAre(3, 3, 3));
  const PlacedLaunch some = plan("ninety_six", "slots_per_trial: 2, cores_per_slot: 4", 10);
  EXPECT_THAT(threads_of(some), ElementsAre(4, 4));
  EXPECT_THAT(refusal("ninety_six", "slots_per_trial: 2, cores_per_slot: 6", 10),
              HasSubstr("box has 10 cores: room for 1 slot x 6 cores"));
  const PlacedLaunch many = plan("ninety_six", "slots_per_trial: 12", 10);
  EXPECT_THAT(many.warnings, testing::Contains(HasSubstr("12 slots, but the cgroup grants 10 CPUs")));
  EXPECT_THAT(threads_of(many), testing::Each(1));
}

TEST_F(MachinePlans, PerformanceAndEfficiencyCores) {
  const PlacedLaunch one = plan("hybrid", "slots_per_trial: 1");
  EXPECT_THAT(cpus_of(one), ElementsAre("0-7")) << "the four fast cores, with their siblings";
  EXPECT_THAT(threads_of(one), ElementsAre(4));
  EXPECT_EQ(row(one, "slots"), "1 slot x 4 cores, of 12");
  EXPECT_THAT(cpus_of(plan("hybrid", "slots_per_trial: 2")), ElementsAre("0-3", "4-7"));
  EXPECT_THAT(cpus_of(plan("hybrid", "slots_per_trial: 8")), ElementsAre("8", "9", "10", "11", "12", "13", "14", "15"));
  const PlacedLaunch three = plan("hybrid", "slots_per_trial: 3, cores_per_slot: 2");
  EXPECT_THAT(cpus_of(three), ElementsAre("8,9", "10,11", "12,13")) << "alike";
}

// What docs/cluster.md has in its table of examples is here or in the tests above.
TEST_F(MachinePlans, OneTwoThreeAndMoreSlots) {
  struct Case {
    std::string machine;
    int slots;
    int each;  // cores_per_slot; 0: auto
    double cpu_limit;
    std::vector<std::string> cpus;
    int threads;  // of each rank
    std::string row;
  };
  const std::vector<Case> cases{
      {"one_by_four", 2, 0, 0, {"0,1", "2,3"}, 2, "2 slots x 2 cores, of 4"},
      {"one_by_four", 3, 1, 0, {"0", "1", "2"}, 1, "3 slots x 1 core, of 4"},
      {"two_sockets_smt",
       3,
       0,
       0,
       {"0-20,64-84", "21-41,85-105", "42-63,106-127"},
       21,
       "3 slots x 21 to 22 cores, of 64"},
      {"two_sockets_smt", 3, 16, 0, {"0-15,64-79", "16-31,80-95", "32-47,96-111"}, 16, "3 slots x 16 cores, of 64"},
      {"two_sockets_smt", 1, 40, 0, {"0-39,64-103"}, 40, "1 slot x 40 cores, of 64"},
      {"four_nodes", 1, 0, 0, {"0-31"}, 32, "1 slot x 32 cores, of 32"},
      {"four_nodes", 3, 0, 0, {"0-9", "10-20", "21-31"}, 10, "3 slots x 10 to 11 cores, of 32"},
      {"four_nodes", 3, 8, 0, {"0-7", "8-15", "16-23"}, 8, "3 slots x 8 cores, of 32"},
      {"four_nodes", 1, 12, 0, {"0-11"}, 12, "1 slot x 12 cores, of 32"},
      {"ninety_six", 4, 0, 0, {"0-23", "24-47", "48-71", "72-95"}, 24, "4 slots x 24 cores, of 96"},
      {"ninety_six", 2, 0, 10, {"0-47", "48-95"}, 5, "2 slots x 48 cores, of 96; 10 may be used at once"},
      {"ninety_six",
       3,
       0,
       10,
       {"0-23", "24-47", "48-95"},
       3,
       "3 slots x 24 to 48 cores, of 96; 10 may be used at once"},
      {"hybrid", 3, 0, 0, {"0,1", "2,3", "4-7"}, 1, "3 slots x 1 to 2 cores, of 12"},
      // Shares of these cores are claimed, and no others are used.
      {"hybrid", 4, 0, 9, {"8,9", "10,11", "12,13", "14,15"}, 2, "4 slots x 2 cores, of 12; 9 may be used at once"},
      {"hybrid", 2, 5, 0, {"8-12", "0-7,13"}, 5, "2 slots x 5 cores, of 12"},
      {"hybrid",
       12,
       0,
       0,
       {"0,1", "2,3", "4,5", "6,7", "8", "9", "10", "11", "12", "13", "14", "15"},
       1,
       "12 slots x 1 core, of 12"},
  };
  for (const Case& one : cases) {
    const std::string resources = resources_of(one.slots, one.each);
    SCOPED_TRACE(one.machine + ": " + resources);
    const PlacedLaunch made = plan(one.machine, resources, one.cpu_limit);
    EXPECT_THAT(cpus_of(made), testing::ElementsAreArray(one.cpus));
    EXPECT_THAT(threads_of(made), testing::Each(one.threads));
    EXPECT_EQ(row(made, "slots"), one.row);
    const std::string threads = std::to_string(one.threads);
    for (const rank::RankPlacement& rank : made.ranks) {
      EXPECT_EQ(thread_variables(made, rank, {}).at("OMP_NUM_THREADS"), threads);
    }
  }
}

TEST_F(MachinePlans, RefusalsSayWhatFits) {
  EXPECT_EQ(
      refusal("two_sockets_smt", "slots_per_trial: 2, cores_per_slot: 33"),
      "this machine: 2 slots x 33 cores never fit on this cluster, even when all of it is free\n"
      "  box has 64 cores: room for 1 slot x 33 cores\n"
      "  the nearest resources.slots_per_trial that fits: 1; or resources.cores_per_slot: 32, or auto (all cores)");
  EXPECT_THAT(refusal("four_nodes", "slots_per_trial: 3, cores_per_slot: 11"),
              HasSubstr("room for 2 slots x 11 cores\n  the nearest resources.slots_per_trial that fits: 2; or "
                        "resources.cores_per_slot: 10, or auto (all cores)"));
  EXPECT_THAT(refusal("ninety_six", "slots_per_trial: 11, cores_per_slot: 1", 10),
              HasSubstr("box has 10 cores: room for 10 slots x 1 core\n"));
  EXPECT_THAT(refusal("hybrid", "slots_per_trial: 1, cores_per_slot: 13"),
              HasSubstr("box has 12 cores: room for no slot of 13 cores\n  resources.cores_per_slot: 12, or auto"));
  EXPECT_THAT(refusal("hybrid", "slots_per_trial: 13, cores_per_slot: 1"),
              HasSubstr("resources.cores_per_slot: auto, with which slots share cores"));
}

// On each machine, whatever is asked for: whole cores that no other rank has, alike threads, no more than there are.
TEST_F(MachinePlans, RanksShareNoCore) {
  struct Given {
    std::string name;
    double cpu_limit;
    int units;
  };
  for (const Given& machine : {Given{"one_by_four", 0, 4}, Given{"two_sockets_smt", 0, 64}, Given{"four_nodes", 0, 32},
                               Given{"ninety_six", 10, 10}, Given{"hybrid", 0, 12}}) {
    for (const int slots : {1, 2, 3, 5, 8}) {
      for (const int each : {0, 1, 2, 3, 6}) {
        if (each == 0 && slots > machine.units) continue;  // they share cores, with a warning
        const std::string resources = resources_of(slots, each);
        SCOPED_TRACE(machine.name + ": " + resources);
        if (slots * each > machine.units) {
          EXPECT_THAT(refusal(machine.name, resources, machine.cpu_limit), HasSubstr("never fit"));
          continue;
        }
        const PlacedLaunch made = plan(machine.name, resources, machine.cpu_limit);
        ASSERT_EQ(made.world_size(), slots);
        std::set<int> taken;
        for (const rank::RankPlacement& rank : made.ranks) {
          for (const int cpu : rank.cpus) EXPECT_TRUE(taken.insert(cpu).second) << "CPU " << cpu << " is given twice";
          EXPECT_EQ(rank.threads, made.ranks.front().threads);
          EXPECT_LE(rank.threads, rank.cores);
          if (each > 0) {
            EXPECT_EQ(rank.threads, each);
          }
        }
        for (const host::Core& core : made.cluster.cores) {
          const auto of_core =
              std::count_if(core.cpus.begin(), core.cpus.end(), [&](int cpu) { return taken.contains(cpu); });
          EXPECT_TRUE(of_core == 0 || std::cmp_equal(of_core, core.cpus.size())) << "core " << core.number;
        }
        EXPECT_GE(made.ranks.front().threads, 1);
        EXPECT_LE(made.ranks.front().threads * slots, machine.units);
      }
    }
  }
}

TEST_F(MachinePlans, SlotsThatAFileDeclaresKeepTheirCores) {
  const std::string file = "agents: [{id: a, host: localhost, slots: 4, slot_type: cpu}]\n";
  const PlacedLaunch two = plan("two_sockets_smt", "slots_per_trial: 2", 0, file);
  EXPECT_THAT(cpus_of(two), ElementsAre("0-15,64-79", "16-31,80-95"));
  EXPECT_THAT(threads_of(two), ElementsAre(16, 16));
  EXPECT_EQ(row(two, "slots"), "2 of 4");
  const PlacedLaunch some = plan("two_sockets_smt", "slots_per_trial: 2, cores_per_slot: 3", 0, file);
  EXPECT_THAT(cpus_of(some), ElementsAre("0-2,64-66", "16-18,80-82")) << "only so many of the slot's";
  EXPECT_THAT(threads_of(some), ElementsAre(3, 3));
  EXPECT_EQ(to_json(some).at("slots"), "2 slots x 3 cores");
  EXPECT_EQ(refusal("two_sockets_smt", "slots_per_trial: 2, cores_per_slot: 17", 0, file),
            "resources.cores_per_slot is 17, but slot 0 of agent a (" + (folder_.path() / "cluster.yaml").string() +
                ") has 16 cores\n  use at most 16, or auto for all cores of the slot");
}

TEST_F(MachinePlans, RanksOfMpirunAreToldTheirCores) {
  const PlacedLaunch here = plan("two_sockets_smt", "slots_per_trial: 2, cores_per_slot: 2", 0, "launcher: mpi\n");
  EXPECT_EQ(slots_variable(here), "=0+1+64+65t2,=2+3+66+67t2") << "as the ledger has given them";
  const rank::Variables variables{{"DTRAIN_SLOTS", slots_variable(here)}};
  EXPECT_THAT(rank::slot_of_rank(variables, 1)->cpus, ElementsAre(2, 3, 66, 67));
  EXPECT_EQ(rank::slot_of_rank(variables, 1)->threads, 2);
  const PlacedLaunch elsewhere = plan("one_by_four", "slots_per_trial: 2, cores_per_slot: 2", 0,
                                      "launcher: mpi\nagents: [{id: a, host: elsewhere, slots: 3, slot_type: cpu}]\n");
  EXPECT_EQ(slots_variable(elsewhere), "0/3x2,1/3x2") << "their host finds the cores";
}

TEST_F(MachinePlans, SlurmIsAskedForTheCoresOfARank) {
  const std::string cluster = "launcher: slurm\n";
  const PlacedLaunch job = plan("one_by_four", "slots_per_trial: 2, cores_per_slot: 8", 0, cluster);
  EXPECT_THAT(batch_script(job, {.dtrain = "/dtrain"}), HasSubstr("#SBATCH --cpus-per-task=8\n"))
      << "the machine from which a job is submitted need not have them";
  EXPECT_THAT(batch_script(plan("one_by_four", "slots_per_trial: 2", 0, cluster), {.dtrain = "/dtrain"}),
              Not(HasSubstr("--cpus-per-task")));
  // Inside of an allocation that did not ask for tasks.
  variables_.insert({{"SLURM_JOB_ID", "17"}, {"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_JOB_CPUS_PER_NODE", "16(x2)"}});
  const PlacedLaunch all = plan("one_by_four", "slots_per_trial: 4");
  EXPECT_EQ(row(all, "slots"), "4 slots x 8 cores, of 32");
  EXPECT_THAT(srun_arguments(all, {}), testing::Contains("--cpus-per-task=8"));
  EXPECT_EQ(slots_variable(all), "0:2,1:2,0:2,1:2");
  EXPECT_EQ(rank::slot_of_rank({{"DTRAIN_SLOTS", slots_variable(all)}}, 3)->of_cores, true);
  const PlacedLaunch some = plan("one_by_four", "slots_per_trial: 3, cores_per_slot: 4");
  EXPECT_THAT(srun_arguments(some, {}), testing::Contains("--cpus-per-task=4"));
  EXPECT_EQ(slots_variable(some), "0:3x4,1:3x4,2:3x4");
  EXPECT_THAT(refusal("one_by_four", "slots_per_trial: 3, cores_per_slot: 12"),
              HasSubstr("n1 has 16 cores: room for 1 slot x 12 cores"));
  // One that did: its slots are the tasks.
  variables_["SLURM_NTASKS"] = "4";
  variables_["SLURM_TASKS_PER_NODE"] = "2(x2)";
  const PlacedLaunch tasks = plan("one_by_four", "slots_per_trial: 2");
  EXPECT_EQ(row(tasks, "slots"), "2 of 4");
  EXPECT_EQ(slots_variable(tasks), "0/2,1/2");
}

TEST(SlotOfRank, IsReadAsItIsWritten) {
  for (const rank::SlotOfRank& slot :
       {rank::SlotOfRank{.index = 1, .slots = 4}, rank::SlotOfRank{.index = 3, .slots = 4, .of_cores = true},
        rank::SlotOfRank{.cpus = {0, 1, 2, 64}}, rank::SlotOfRank{.index = 0, .slots = 1, .cores = 3},
        rank::SlotOfRank{.index = 0, .slots = 2, .of_cores = true, .cores = 3, .threads = 6}}) {
    const auto read = rank::slot_of_rank({{"DTRAIN_SLOTS", "0/1," + to_text(slot)}}, 1);
    ASSERT_TRUE(read) << to_text(slot);
    EXPECT_EQ(to_text(*read), to_text(slot));
    EXPECT_EQ(std::tie(read->cpus, read->cores, read->threads, read->of_cores),
              std::tie(slot.cpus, slot.cores, slot.threads, slot.of_cores));
  }
  for (const char* wrong :
       {"", "1", "1/1", "-1/2", "0/0", "0/2x", "0/2t0", "0/2y3", "=", "=3-", "=a", "0;2", "0/2x1t1t1"}) {
    EXPECT_THROW(rank::slot_of_rank({{"DTRAIN_SLOTS", wrong}}, 0), ConfigError) << wrong;
  }
}

}  // namespace
}  // namespace dtrain::launcher
