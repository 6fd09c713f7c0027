#include "dtrain/rank/environment.h"

#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <functional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "run_harness.h"

namespace dtrain::rank {
namespace {

using testing::HasSubstr;

const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"PMIX_NAMESPACE", "3512"}};
const Variables kSlurm{{"SLURM_PROCID", "2"},  {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_LOCALID", "2"},
                       {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NUM_NODES", "1"},
                       {"SLURM_NTASKS", "9"}};
const Variables kTorchrun{{"RANK", "0"},
                          {"WORLD_SIZE", "2"},
                          {"LOCAL_RANK", "0"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "node0"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "abc"}};

std::string error_of(const Variables& variables) {
  try {
    read_rank_environment(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(Environment, WithNothingItIsASingleRank) {
  const RankEnvironment environment = read_rank_environment({{"PATH", "/bin"}});
  EXPECT_EQ(environment.world.size, 1);
  EXPECT_EQ(environment.started_by, "nothing");
  EXPECT_FALSE(environment.handover);
}

TEST(Environment, OpenMpi) {
  const RankEnvironment environment = read_rank_environment(kOpenMpi);
  EXPECT_EQ(environment.world.rank, 1);
  EXPECT_EQ(environment.world.size, 4);
  EXPECT_EQ(environment.world.local_rank, 1);
  EXPECT_EQ(environment.job, "ompi-3512");
}

TEST(Environment, SlurmsStepAndNotItsScript) {
  const RankEnvironment environment = read_rank_environment(kSlurm);
  EXPECT_EQ(environment.world.rank, 2);
  EXPECT_EQ(environment.world.size, 3);
  EXPECT_EQ(environment.job, "slurm-77.0");
  EXPECT_EQ(read_rank_environment(without(kSlurm, "SLURM_STEP_NUM_TASKS")).world.size, 9) << "the job's stands in";
  Variables script = kSlurm;  // of sbatch
  for (const char* of_steps : {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"}) script.erase(of_steps);
  EXPECT_EQ(read_rank_environment(script).world.size, 1);
  EXPECT_EQ(read_rank_environment(script).started_by, "nothing");
}

TEST(Environment, Torchrun) {
  const RankEnvironment environment = read_rank_environment(kTorchrun);
  EXPECT_EQ(environment.world.size, 2);
  EXPECT_EQ(environment.job, "torch-abc-29500-0");
  EXPECT_EQ(environment.started_by, "torchrun");
  EXPECT_EQ(read_rank_environment(without(kTorchrun, "TORCHELASTIC_RUN_ID")).started_by, "RANK and WORLD_SIZE");
}

TEST(Environment, OwnVariablesComeFirst) {
  Variables variables = kOpenMpi;
  const comm::World world{.rank = 0, .size = 2, .local_rank = 0, .local_size = 2};
  variables.merge(rank_variables(world, {7, 99, "/run", "/rendezvous", "node", "socket"}));
  const RankEnvironment environment = read_rank_environment(variables);
  EXPECT_EQ(environment.world.size, 2);
  EXPECT_EQ(environment.world.host, "node");
  ASSERT_TRUE(environment.handover);
  EXPECT_EQ(environment.handover->link_fd, 7);
  EXPECT_EQ(environment.handover->launcher_pid, 99);
  EXPECT_EQ(environment.handover->run_dir, "/run");
  EXPECT_EQ(environment.handover->rendezvous, "/rendezvous");
  EXPECT_EQ(environment.handover->monitor_socket, "socket");
  EXPECT_FALSE(environment.is_placed_on_gpus());
  EXPECT_TRUE(read_rank_environment(rank_variables(world, {7, 99, "/run", "/rendezvous", "node", "socket", true}))
                  .is_placed_on_gpus());
  variables["DTRAIN_SLOT_TYPE"] = "gpu";
  EXPECT_THAT(error_of(variables), HasSubstr("DTRAIN_SLOT_TYPE=gpu is neither cuda nor cpu"));
}

TEST(Environment, RestartsAreThoseOfTorchrunOrOfAKeeper) {
  Variables variables = kTorchrun;
  EXPECT_EQ(read_rank_environment(variables).restart, 0);
  EXPECT_EQ(read_rank_environment(variables).most_restarts, std::nullopt);
  variables["TORCHELASTIC_RESTART_COUNT"] = "2";
  variables["TORCHELASTIC_MAX_RESTARTS"] = "5";
  const RankEnvironment by_torchrun = read_rank_environment(variables);
  EXPECT_EQ(by_torchrun.restart, 2);
  EXPECT_EQ(by_torchrun.most_restarts, 5);
  EXPECT_FALSE(by_torchrun.is_kept());
  EXPECT_THAT(by_torchrun.job, testing::EndsWith("-2")) << "ranks of two attempts do not meet";
  Variables second_host = variables;
  second_host["LOCAL_WORLD_SIZE"] = "1";
  const std::string job = read_rank_environment(second_host).job;
  second_host["TORCHELASTIC_RESTART_COUNT"] = "0";
  EXPECT_EQ(read_rank_environment(second_host).job, job)
      << "the torchrun of a host that came later has started none again";
  second_host["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_NE(read_rank_environment(second_host).job, job) << "its store outlives the ranks";
  variables = without(variables, "TORCHELASTIC_RUN_ID");
  variables["DTRAIN_KEEPER_FD"] = "3";
  const RankEnvironment kept = read_rank_environment(variables);
  EXPECT_TRUE(kept.is_kept());
  EXPECT_EQ(kept.restart, 2);
  EXPECT_EQ(kept.most_restarts, std::nullopt);
  variables["TORCHELASTIC_RESTART_COUNT"] = "two";
  EXPECT_THAT(error_of(variables), HasSubstr("TORCHELASTIC_RESTART_COUNT=two is not a number"));
}

TEST(Environment, TorchrunInAStepOfSlurmIsTorchrun) {
  Variables variables = kSlurm;
  variables.merge(Variables(kTorchrun));
  EXPECT_EQ(read_rank_environment(variables).started_by, "torchrun");
  EXPECT_EQ(read_rank_environment(variables).world.size, 2);
  EXPECT_EQ(read_rank_environment(without(variables, "TORCHELASTIC_RUN_ID")).started_by, "Slurm");
}

TEST(Environment, RankAndWorldSizeAloneAreOneHost) {
  Variables variables{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1234"}};
  const RankEnvironment environment = read_rank_environment(variables);
  EXPECT_EQ(environment.world.local_rank, 1);
  EXPECT_EQ(environment.world.local_size, 2);
  EXPECT_FALSE(environment.names_local_ranks);
  EXPECT_TRUE(read_rank_environment(kTorchrun).names_local_ranks);
}

TEST(Environment, OwnVariablesWithoutALauncher) {
  Variables variables{{"DTRAIN_RANK", "1"},
                      {"DTRAIN_WORLD_SIZE", "2"},
                      {"DTRAIN_LOCAL_RANK", "1"},
                      {"DTRAIN_LOCAL_SIZE", "2"},
                      {"DTRAIN_JOB", "mine"}};
  const RankEnvironment environment = read_rank_environment(variables);
  EXPECT_EQ(environment.job, "dtrain-mine");
  EXPECT_FALSE(environment.handover);
  for (const auto& [name, value] : variables) {
    EXPECT_THAT(error_of(without(variables, name)), HasSubstr(name + " is not set"));
  }
}

TEST(Environment, TheCheckpointToGoOnFromIsHandedOver) {
  Handover handover{7, 99, "/run", "/rendezvous", "node", "socket"};
  EXPECT_EQ(read_rank_environment(rank_variables({}, handover)).handover->resume_from, "");
  handover.resume_from = "/run/checkpoints/step-12";
  EXPECT_EQ(read_rank_environment(rank_variables({}, handover)).handover->resume_from, "/run/checkpoints/step-12");
}

TEST(Environment, EveryMissingVariableIsNamed) {
  struct Family {
    std::string name;
    Variables whole;
    std::set<std::string> may_be_missing;
  };
  const Variables own = rank_variables({.rank = 0, .size = 2, .local_rank = 0, .local_size = 2},
                                       {7, 99, "/run", "/rendezvous", "node", "socket"});
  const std::vector<Family> families{
      {"dtrain launch", own, {"DTRAIN_LAUNCHER_FD", "DTRAIN_RESUME_FROM", "DTRAIN_MEMORY_FOLDER"}},
      {"Open MPI", kOpenMpi, {}},
      {"Slurm", without(kSlurm, "SLURM_NTASKS"), {}},
      {"torchrun", kTorchrun, {"TORCHELASTIC_RUN_ID"}},
      {"plain", without(kTorchrun, "TORCHELASTIC_RUN_ID"), {}},
      {"plain, without LOCAL_", {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}, {}}};
  for (const Family& family : families) {
    EXPECT_EQ(error_of(family.whole), "no error") << family.name;
    for (const auto& [name, value] : family.whole) {
      if (family.may_be_missing.contains(name)) continue;
      EXPECT_THAT(error_of(without(family.whole, name)), HasSubstr(name + " is not set")) << family.name;
    }
  }
  // One that is set alone is never ignored.
  for (const std::string name : {"DTRAIN_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID", "RANK", "WORLD_SIZE",
                                 "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    EXPECT_THAT(error_of({{name, "1"}}), HasSubstr(" is not set, though " + name + " is"));
  }
}

TEST(Environment, ValuesOutOfRangeAreNamed) {
  Variables variables = kTorchrun;
  variables["RANK"] = "2";
  EXPECT_THAT(error_of(variables), HasSubstr("RANK=2 is not a number from 0 to 1"));
  variables["RANK"] = "0x1";
  EXPECT_THAT(error_of(variables), HasSubstr("RANK=0x1 is not a number"));
  variables["WORLD_SIZE"] = "-3";
  EXPECT_THAT(error_of(variables), HasSubstr("WORLD_SIZE=-3 is not a number"));
}

TEST(Environment, SeveralHosts) {
  Variables variables = kOpenMpi;
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  variables["DTRAIN_NETWORK_INTERFACE"] = "10.1.0.0/16";
  const RankEnvironment environment = read_rank_environment(variables);
  EXPECT_EQ(environment.world.local_size, 2);
  EXPECT_GT(environment.world.size, 2);
  EXPECT_EQ(environment.network_interface, "10.1.0.0/16");
  Variables slurm = kSlurm;
  slurm["SLURM_STEP_NUM_NODES"] = "2";
  slurm["SLURM_LOCALID"] = "0";
  EXPECT_LT(read_rank_environment(slurm).world.local_size, read_rank_environment(slurm).world.size);
}

TEST(Environment, WhereRank0IsIfItIsSaid) {
  EXPECT_FALSE(read_rank_environment(kOpenMpi).master);
  Variables variables = kTorchrun;
  const auto own = read_rank_environment(variables).master;
  ASSERT_TRUE(own);
  EXPECT_EQ(own->name, "node0");
  EXPECT_EQ(own->port, 29500);
  EXPECT_FALSE(own->is_served);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_TRUE(read_rank_environment(variables).master->is_served);
  variables["MASTER_PORT"] = "ssh";
  EXPECT_THAT(error_of(variables), HasSubstr("MASTER_PORT=ssh is not a number from 1 to 65535"));
}

const Variables kPod{{"PET_NNODES", "3"},
                     {"PET_NODE_RANK", "1"},
                     {"PET_NPROC_PER_NODE", "4"},
                     {"PET_MASTER_ADDR", "first-node-0-0.first"},
                     {"PET_MASTER_PORT", "29400"}};

TEST(NodeEnvironment, IsThatOfAPod) {
  EXPECT_FALSE(read_node_environment({{"PATH", "/bin"}}));
  const auto node = read_node_environment(kPod);
  ASSERT_TRUE(node);
  EXPECT_EQ(node->nodes, 3);
  EXPECT_EQ(node->rank, 1);
  EXPECT_EQ(node->ranks_here, 4);
  EXPECT_EQ(node->master.name, "first-node-0-0.first");
  EXPECT_EQ(node->master.port, 29400);
  Variables variables = kPod;
  variables["PET_NPROC_PER_NODE"] = "auto";
  variables["PET_NNODES"] = "3:3";
  EXPECT_EQ(read_node_environment(variables)->ranks_here, 0);
  EXPECT_EQ(read_node_environment(variables)->nodes, 3);
  EXPECT_EQ(read_node_environment({{"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "2"}})->ranks_here, 2);
}

TEST(NodeEnvironment, ANumberThatMayChange) {
  EXPECT_FALSE(read_node_environment(kPod)->may_change());
  Variables variables = kPod;
  variables["PET_NNODES"] = "2:4";
  variables["PET_NODE_RANK"] = "3";
  const auto node = read_node_environment(variables);
  EXPECT_TRUE(node->may_change());
  EXPECT_EQ(node->least, 2);
  EXPECT_EQ(node->nodes, 4);
  EXPECT_EQ(node->last_call, std::chrono::seconds(30));
  variables["PET_RDZV_CONF"] = "join_timeout=600,last_call_timeout=7";
  EXPECT_EQ(read_node_environment(variables)->last_call, std::chrono::seconds(7));
  variables["PET_NPROC_PER_NODE"] = "1";
  EXPECT_THAT(error_of(variables), HasSubstr("PET_NNODES=2:4, but this program was started as one process"));
}

TEST(NodeEnvironment, WhatIsMissingOrWrongIsNamed) {
  const auto error = [](const Variables& variables) -> std::string {
    try {
      read_node_environment(variables);
    } catch (const ConfigError& refused) {
      return refused.what();
    }
    return "no error";
  };
  for (const char* name : {"PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"}) {
    EXPECT_EQ(error(without(kPod, name)), "environment: " + std::string(name) + " is not set, though PET_NNODES is");
  }
  Variables variables = kPod;
  variables["PET_NODE_RANK"] = "3";
  EXPECT_EQ(error(variables), "environment: PET_NODE_RANK=3 is not a number from 0 to 2");
  variables = kPod;
  for (const auto& [value, expected] : std::map<std::string, std::string>{
           {"4:2", "environment: PET_NNODES=4:2 names the larger number of hosts first"},
           {"2:", "environment: PET_NNODES=2: is neither a number from 1 to 100000 nor two such numbers"},
           {"0:4", "environment: PET_NNODES=0:4 is neither a number from 1 to 100000 nor two such numbers"}}) {
    variables["PET_NNODES"] = value;
    EXPECT_EQ(error(variables), expected);
  }
  variables["PET_NNODES"] = "2:4";
  variables["PET_RDZV_CONF"] = "join_timeout=9,last_call_timeout=soon";
  EXPECT_EQ(error(variables), "environment: PET_RDZV_CONF: last_call_timeout=soon is no number of seconds");
}

TEST(NodeEnvironment, AProcessThatAPodStartsByItselfIsItsOnlyRank) {
  Variables variables = kPod;
  EXPECT_THAT(error_of(variables), HasSubstr("PET_NPROC_PER_NODE=4, but this program was started as one process"));
  variables.erase("PET_NPROC_PER_NODE");
  const RankEnvironment environment = read_rank_environment(variables);
  EXPECT_EQ(environment.world.rank, 1);
  EXPECT_EQ(environment.world.size, 3);
  EXPECT_EQ(environment.world.local_size, 1);
  EXPECT_EQ(environment.master->port, 29400);
  // Its ranks have torchrun's variables, which come first.
  variables.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(read_rank_environment(variables).world.size, 2);
}

TEST(PrivateFolder, IsClosedToOthersOrRefused) {
  const TemporaryFolder runtime;
  const auto folder = private_folder({{"XDG_RUNTIME_DIR", runtime.path().string()}});
  ASSERT_EQ(folder, runtime.path() / "dtrain");
  EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all);
  ::chmod(folder.c_str(), 0755);
  EXPECT_THROW(private_folder({{"XDG_RUNTIME_DIR", runtime.path().string()}}), SystemError);
  fs::remove(folder);
  fs::create_directory_symlink("/tmp", folder);
  EXPECT_THROW(private_folder({{"XDG_RUNTIME_DIR", runtime.path().string()}}), SystemError);
}

// Who may do so takes the place of the folder of a user; then processes of that user start at the same time.
class TakenFolder : public testing::TestWithParam<std::function<void(const fs::path&)>> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can act as two users";
    clear();
    GetParam()(taken());
  }
  void TearDown() override { clear(); }

  static constexpr uid_t kUser = 61'234;
  static fs::path taken() { return "/tmp/dtrain-" + std::to_string(kUser); }

  // As processes of the user see it, each with its exit status 0; the answers are all that they have written.
  static std::set<std::string> folders_of_processes(int count) {
    std::vector<pid_t> processes;
    Pipe answers = make_pipe();
    for (int i = 0; i < count; ++i) {
      processes.push_back(::fork());
      if (processes.back() != 0) continue;
      if (::setresgid(kUser, kUser, kUser) != 0 || ::setresuid(kUser, kUser, kUser) != 0) ::_exit(1);
      const std::string line = private_folder({}).string() + "\n";
      ::_exit(write_all(answers.writer.get(), line) == line.size() ? 0 : 2);
    }
    answers.writer.reset();
    const std::string text = read_to_end(answers.reader.get()).value();
    for (const pid_t process : processes) {
      int status = -1;
      EXPECT_EQ(::waitpid(process, &status, 0), process);
      EXPECT_EQ(status, 0);
    }
    std::set<std::string> result;
    for (const std::string& line : split(text, '\n')) {
      if (!line.empty()) result.insert(line);
    }
    return result;
  }

 private:
  static void clear() {
    fs::remove(taken());
    for (const auto& entry : fs::directory_iterator("/tmp")) {
      if (entry.path().string().starts_with(taken().string() + "-")) fs::remove(entry.path());
    }
  }
};

TEST_P(TakenFolder, GivesWayToOneThatAllProcessesOfTheUserFind) {
  const std::set<std::string> first = folders_of_processes(8);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_THAT(*first.begin(), testing::StartsWith(taken().string() + "-"));
  struct stat info {};
  ASSERT_EQ(::lstat(first.begin()->c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kUser);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  // Another user's folder of such a name is passed over, and later processes find the same.
  const std::string squatted = taken().string() + "-000000";
  ::mkdir(squatted.c_str(), 0777);
  EXPECT_EQ(folders_of_processes(2), first);
  // It stays so when the name is free again.
  fs::remove(taken());
  EXPECT_EQ(folders_of_processes(2), first);
}

INSTANTIATE_TEST_SUITE_P(ByAnotherUser, TakenFolder,
                         testing::Values([](const fs::path& path) { ::mkdir(path.c_str(), 0700); },
                                         [](const fs::path& path) { std::ofstream(path) << "a file"; },
                                         [](const fs::path& path) { fs::create_directory_symlink("/tmp", path); },
                                         [](const fs::path& path) { ::mkfifo(path.c_str(), 0666); }));

TEST(CacheFolder, IsWhereTheUserKeepsCaches) {
  EXPECT_EQ(cache_folder({{"XDG_CACHE_HOME", "/c"}, {"HOME", "/h"}}), "/c/dtrain");
  EXPECT_EQ(cache_folder({{"XDG_CACHE_HOME", "relative"}, {"HOME", "/h"}}), "/h/.cache/dtrain");
  EXPECT_EQ(cache_folder({}), "");
}

TEST(FindProgram, BesideFirstThenPath) {
  const TemporaryFolder beside, path;
  const Variables variables{{"PATH", path.path().string()}};
  EXPECT_EQ(find_program("tool", beside.path(), variables), "");
  std::ofstream(path.path() / "tool") << "#!/bin/sh\n";
  EXPECT_EQ(find_program("tool", beside.path(), variables), "") << "not executable";
  fs::permissions(path.path() / "tool", fs::perms::owner_all);
  EXPECT_EQ(find_program("tool", beside.path(), variables), path.path() / "tool");
  fs::copy(path.path() / "tool", beside.path() / "tool");
  EXPECT_EQ(find_program("tool", beside.path(), variables), beside.path() / "tool");
}

}  // namespace
}  // namespace dtrain::rank
