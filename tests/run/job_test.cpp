// What mpirun and srun are started with, and what is read from what they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "commands/job_command.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/environment.h"
#include "launch/job_ranks.h"
#include "run_harness.h"

namespace dtrain::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Ranks 0 and 1 on node-1 (host nodea), rank 2 on node-2 (nodeb), which has four slots.
PlacedLaunch three_ranks() {
  PlacedLaunch plan;
  plan.experiment.name = "it's a job";
  plan.host = "nodea";
  plan.cluster.cluster.launcher.type = config::LauncherType::kMpi;
  for (const auto& [id, host, slots] : {std::tuple("node-1", "nodea", 2), std::tuple("node-2", "nodeb", 4)}) {
    plan.cluster.agents.push_back({.agent = {.id = id, .host = host, .slots = slots}});
  }
  plan.placement = {{"node-1", 2}, {"node-2", 1}};
  plan.ranks = {{.rank = 0, .host = "nodea", .agent = "node-1", .slot = 0},
                {.rank = 1, .host = "nodea", .agent = "node-1", .slot = 1},
                {.rank = 2, .host = "nodeb", .agent = "node-2", .slot = 3}};
  return plan;
}

TEST(MpiCommand, PutsEachRankWhereThePlanSays) {
  const PlacedLaunch plan = three_ranks();
  EXPECT_EQ(hostfile(plan), "nodea\nnodea\nnodeb\n");
  EXPECT_EQ(slots_variable(plan), "0/2,1/2,3/4");
  const rank::Variables variables{{"DTRAIN_SLOTS", slots_variable(plan)}};
  EXPECT_EQ(rank::slot_of_rank(variables, 2)->index, 3);
  EXPECT_EQ(rank::slot_of_rank(variables, 2)->slots, 4);
  EXPECT_FALSE(rank::slot_of_rank({}, 0));
  EXPECT_THROW(rank::slot_of_rank(variables, 3), ConfigError);
  EXPECT_THROW(rank::slot_of_rank({{"DTRAIN_SLOTS", "4/4"}}, 0), ConfigError);
}

TEST(MpiCommand, HasTheNetworkTheVariablesAndTheUsersOptionsLast) {
  const MpiCommand command{.options = {"--bind-to", "core"},
                           .network = "eth1",
                           .hostfile = "/run/hostfile",
                           .ranks = 3,
                           .passed = {"COLOUR"},
                           .program = {"/bin/trial", "experiment.yaml"}};
  const std::string line = join(mpirun_arguments(command), " ");
  EXPECT_THAT(line, HasSubstr("mpirun --hostfile /run/hostfile -np 3 --map-by seq"));
  EXPECT_THAT(line, HasSubstr("--mca btl_tcp_if_include eth1 --mca oob_tcp_if_include eth1 -x COLOUR"));
  EXPECT_THAT(line, HasSubstr("-x COLOUR --bind-to core /bin/trial experiment.yaml"));
  EXPECT_THAT(line, Not(HasSubstr("--bind-to none")));
  EXPECT_THAT(line, Not(HasSubstr("root")));
}

TEST(MpiCommand, PassesOnWhatLibrariesReadAndNothingElse) {
  const rank::Variables job{{"DTRAIN_SECRET_FILE", "x"}};
  const rank::Variables mine{{"NCCL_DEBUG", "INFO"},       {"HOME", "/root"},
                             {"OMP_NUM_THREADS", "2"},     {"EDITOR", "ed"},
                             {"FI_PROVIDER", "tcp"},       {"PYTORCH_ALLOC_CONF", "expandable_segments:True"},
                             {"CUDA_VISIBLE_DEVICES", "1"}};  // of this host
  EXPECT_THAT(passed_on(job, mine),
              ElementsAre("DTRAIN_SECRET_FILE", "FI_PROVIDER", "NCCL_DEBUG", "OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF"));
}

TEST(MpirunWords, SayWhichRankEndedFirstAndHow) {
  const JobWords killed =
      read_mpirun_words("mpirun noticed that process rank 1 with PID 0 on node nodeb exited on signal 9 (Killed).\n");
  ASSERT_TRUE(killed.first);
  EXPECT_EQ(killed.first->rank, 1);
  EXPECT_EQ(killed.first->signal, 9);
  const JobWords exited = read_mpirun_words(
      "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
      "the job to be terminated. The first process to do so was:\n\n  Process name: [[63418,1],2]\n  Exit code:    "
      "7\n");
  ASSERT_TRUE(exited.first);
  EXPECT_EQ(exited.first->rank, 2);
  EXPECT_EQ(exited.first->code, 7);
  EXPECT_EQ(read_mpirun_words("  HNP daemon   : [[22910,0],0] on node nodea\n"
                              "  Remote daemon: [[22910,0],1] on node nodeb\n")
                .lost_host,
            "nodeb");
  EXPECT_FALSE(read_mpirun_words("all is well").first);
}

TEST(MpirunWords, OfStartRankCountFirst) {
  const std::string text =
      "dtrain start-rank: rank 2 ended with exit status 1\n"
      "dtrain start-rank: rank 1 was killed by signal 9\n"
      "dtrain start-rank: rank 0 ended with exit status 7\n"
      "mpirun noticed that process rank 3 with PID 0 on node nodeb exited on signal 9 (Killed).\n";
  EXPECT_EQ(read_mpirun_words(text).first->rank, 1);  // the others followed
  EXPECT_EQ(read_mpirun_words(text).first->signal, 9);
  EXPECT_EQ(read_mpirun_words(text, 0).first->code, 7);
  EXPECT_EQ(read_mpirun_words(text, 3).first->rank, 1);
}

TEST(SrunWords, SayWhichRankEndedFirstAndHow) {
  EXPECT_EQ(read_srun_words("srun: error: node1: task 3: Killed\n").first->signal, 9);
  EXPECT_EQ(read_srun_words("srun: error: node1: task 3: Segmentation fault (core dumped)\n").first->signal, 11);
  EXPECT_EQ(read_srun_words("srun: error: node1: task 0: Exited with exit code 7\n").first->code, 7);
  EXPECT_FALSE(read_srun_words("srun: job 7 queued\n").first);
  const std::string two =
      "srun: error: n: task 0: Exited with exit code 1\nsrun: error: n: task 1: Exited with exit code 7\n";
  EXPECT_EQ(read_srun_words(two, 1).first->code, 7);
  EXPECT_EQ(read_srun_words(two, 2).first->code, 1);
}

TEST(SlurmCommand, AsksForTheNodesOfThePlan) {
  PlacedLaunch plan = three_ranks();
  plan.cluster.cluster.launcher = {.type = config::LauncherType::kSlurm, .options = {"--partition=long"}};
  EXPECT_TRUE(needs_allocation(plan, {}));
  EXPECT_FALSE(needs_allocation(plan, {{"SLURM_JOB_ID", "7"}}));
  const std::string script = batch_script(plan, {.dtrain = "/bin/dtrain",
                                                 .experiment = "/home/my experiment.yaml",
                                                 .run_dir = "/runs/1",
                                                 .folder = "/home",
                                                 .token = "abc"});
  EXPECT_THAT(script, HasSubstr("#SBATCH --job-name='it'\\''s a job'\n"));
  EXPECT_THAT(script, HasSubstr("#SBATCH --ntasks=3\n#SBATCH --nodes=2\n#SBATCH --nodelist=nodea,nodeb\n"));
  EXPECT_THAT(script, HasSubstr("#SBATCH --partition=long\n"));
  EXPECT_THAT(script, HasSubstr("exec '/bin/dtrain' launch '/home/my experiment.yaml' --run-dir '/runs/1'\n"));
  const std::string line = join(srun_arguments(plan, {"trial"}), " ");
  EXPECT_THAT(line, HasSubstr("--ntasks=3 --distribution=arbitrary"));
  EXPECT_THAT(line, HasSubstr("--mpi=pmix --partition=long trial"));
}

TEST(SlurmCommand, NothingThatItIsGivenRunsAsShell) {
  const TemporaryFolder folder;
  const fs::path evil = folder.path() / "$(touch ran) `touch ran`; touch ran #'\"\\\ntouch ran";
  const fs::path recorder = folder.path() / "it's dtrain";
  std::ofstream(recorder) << "#!/bin/sh\nfor word; do printf '%s\\0' \"$word\"; done >" << folder.path().string()
                          << "/words\n";
  fs::permissions(recorder, fs::perms::owner_all);
  PlacedLaunch plan = three_ranks();
  plan.experiment.name = "$(touch ran) `touch ran`; touch ran #'\"\\";
  plan.cluster.cluster.launcher = {
      .type = config::LauncherType::kSlurm,
      .options = {"--comment=$(touch ran); touch ran", "--mail-type", "END", "`touch ran`"}};
  plan.asked.overrides = {"name='$(touch ran)\ntouch ran'"};
  const SbatchJob job{.dtrain = recorder,
                      .experiment = evil,
                      .run_dir = folder.path() / "runs/$(touch ran)",
                      .cluster = evil,
                      .folder = folder.path() / "; touch ran",
                      .token = "abc"};
  const std::string script = batch_script(plan, job);
  EXPECT_THAT(script, HasSubstr("\n#SBATCH '--comment=$(touch ran); touch ran'\n"));
  EXPECT_THAT(script, HasSubstr("\n#SBATCH --mail-type END '`touch ran`'\n"));
  std::ofstream(folder.path() / "job.sh") << script;
  ASSERT_EQ(std::system(("cd " + folder.path().string() + " && bash job.sh").c_str()), 0);
  EXPECT_FALSE(fs::exists(folder.path() / "ran"));
  EXPECT_THAT(split(slurp(folder.path() / "words"), '\0'),
              ElementsAre("launch", evil.string(), "--run-dir", job.run_dir.string(), "--cluster", evil.string(),
                          "--set", plan.asked.overrides[0], ""));
}

TEST(SlurmCommand, ALineBreakInAnOptionOrAPathIsRefused) {
  const PlacedLaunch plan = three_ranks();
  const SbatchJob job{
      .dtrain = "/bin/dtrain", .experiment = "/e.yaml", .run_dir = "/runs/1", .folder = "/home", .token = "a"};
  const auto refusal = [](const PlacedLaunch& some, const SbatchJob& of) -> std::string {
    try {
      return "accepted: " + batch_script(some, of);
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  for (const std::string evil : {"\ntouch /tmp/ran", "\rtouch /tmp/ran"}) {
    PlacedLaunch some = plan;
    some.cluster.cluster.launcher.options = {"--comment=x" + evil};
    EXPECT_THAT(refusal(some, job), HasSubstr("launcher.options) has a line break"));
    some = plan;
    some.experiment.name = "x" + evil;
    EXPECT_THAT(refusal(some, job), HasSubstr("the experiment's name has a line break"));
    SbatchJob of = job;
    of.run_dir = "/runs/x" + evil;
    EXPECT_THAT(refusal(plan, of), HasSubstr("the run's folder has a line break"));
    of = job;
    of.folder = "/home/x" + evil;
    EXPECT_THAT(refusal(plan, of), HasSubstr("has a line break"));
  }
}

Failure failure_of(const JobEnd& end, const JobWords& words = {}) {
  const TemporaryFolder folder;
  const Outcome outcome = judge_job(three_ranks(), rank::RunFolder{folder.path()}, end, words, "mpirun");
  EXPECT_EQ(outcome.exit_code, ExitCode::kRunFailed);
  return outcome.failure.value();
}

TEST(JobOutcome, NamesTheRankItsHostAndWhetherItMayPass) {
  const Failure own = failure_of({.error = rank::ErrorMessage{.rank = 2, .step = 7, .cause = "no"}, .joined = 3});
  EXPECT_EQ(own.cause, "rank 2 on nodeb failed at batch 7: no");
  EXPECT_FALSE(own.may_pass);

  const JobEnd gone{.error = rank::ErrorMessage{.departure = comm::Departure::kGone, .rank = 2}, .joined = 3};
  const Failure killed = failure_of(gone, {.first = EndOfRank{.rank = 2, .signal = 9}});
  EXPECT_EQ(killed.cause, "rank 2 on nodeb was killed by signal 9 (SIGKILL)");
  EXPECT_TRUE(killed.may_pass);
  EXPECT_FALSE(failure_of(gone, {.first = EndOfRank{.rank = 2, .code = 7}}).may_pass);

  const JobEnd silent{.error = rank::ErrorMessage{.departure = comm::Departure::kSilent, .rank = 2}, .joined = 3};
  EXPECT_THAT(failure_of(silent).cause, HasSubstr("host nodeb is lost, with rank 2"));
  EXPECT_TRUE(failure_of(silent).may_pass);
  EXPECT_THAT(failure_of(gone, {.lost_host = "nodeb"}).cause, HasSubstr("host nodeb is lost"));

  const Failure agreed =
      failure_of({.error = rank::ErrorMessage{.agreed = true, .rank = -1, .cause = "all agree"}, .joined = 3});
  EXPECT_EQ(agreed.cause, "all agree");
}

TEST(MergeFolder, AddsEventsAndTakesThePlanOfRank0) {
  const TemporaryFolder here;
  const TemporaryFolder there;
  const auto write = [](const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  };
  write(here.path() / "events.jsonl", "{\"event\":\"run_started\"}\n");
  write(here.path() / "plan.json", R"({"name": "job", "versions": {"dtrain": "1"}})");
  write(there.path() / "events.jsonl", "{\"event\":\"rank_started\"}\n{\"event\":\"to");
  write(there.path() / "plan.json", R"({"name": "job", "versions": {"dtrain": "1", "libtorch": "2"}})");
  write(there.path() / "metrics.jsonl", "{}\n");
  write(there.path() / "profile" / "rank-0000.jsonl", "{}\n");
  rank::merge_folder(rank::RunFolder{there.path()}, rank::RunFolder{here.path()});
  EXPECT_EQ(slurp(here.path() / "events.jsonl"), "{\"event\":\"run_started\"}\n{\"event\":\"rank_started\"}\n");
  EXPECT_THAT(slurp(here.path() / "plan.json"), HasSubstr("libtorch"));
  EXPECT_TRUE(fs::exists(here.path() / "profile" / "rank-0000.jsonl"));
  EXPECT_TRUE(fs::exists(here.path() / "metrics.jsonl"));
}

}  // namespace
}  // namespace dtrain::launcher
