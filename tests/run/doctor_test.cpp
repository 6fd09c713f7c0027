// `dtrain doctor`: what its checks make of what they see, and the command itself against planted problems.
#include <gmock/gmock.h>

#include "cli_harness.h"
#include "doctor/checks.h"
#include "dtrain/rank/libtorch.h"

namespace dtrain::launcher {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Checks, OpenFiles) {
  EXPECT_EQ(judge_open_files(1024, 1024).level, Level::kOk);
  const Finding raised = judge_open_files(512, 4096);
  EXPECT_EQ(raised.level, Level::kOk);
  EXPECT_EQ(raised.text, "4096 for a process, once dtrain has raised it from 512");
  EXPECT_EQ(judge_open_files(512, 512).level, Level::kWarning);
  const Finding too_few = judge_open_files(64, 64);
  EXPECT_EQ(too_few.level, Level::kProblem);
  EXPECT_THAT(too_few.remedy, HasSubstr("hard limit 64"));
}

TEST(Checks, LockedMemoryMattersWhereThereIsInfiniBand) {
  EXPECT_EQ(judge_locked_memory(std::nullopt, true).text, "no limit");
  EXPECT_EQ(judge_locked_memory(64 * 1024, false).level, Level::kOk);
  EXPECT_EQ(judge_locked_memory(64 * 1024, true).level, Level::kWarning);
  EXPECT_EQ(judge_locked_memory(1ull << 30, true).level, Level::kOk);
}

TEST(Checks, DevShm) {
  EXPECT_EQ(check_dev_shm(0, "/nowhere/shm").level, Level::kWarning);
  EXPECT_NE(check_dev_shm(0, "/proc").level, Level::kOk) << "nothing fits into it";
  const Finding among_gpus = check_dev_shm(16, "/proc");
  EXPECT_THAT(among_gpus.text, HasSubstr("NCCL takes up to 2.0 GiB among 16 GPUs"));
  EXPECT_THAT(among_gpus.remedy, HasSubstr("sudo mount -o remount,size=2048m /proc"));
}

TEST(Checks, ClocksAreJudgedByWhatIsCertain) {
  const auto ms = [](int value) { return Nanoseconds(std::chrono::milliseconds(value)); };
  const ClockOffset best = clock_offset({{ms(0), ms(700), ms(1000)}, {ms(2000), ms(2210), ms(2020)}});
  EXPECT_EQ(best.offset, ms(200)) << "the shorter way says more";
  EXPECT_EQ(best.error, ms(10));
  EXPECT_EQ(judge_clock(best).level, Level::kWarning);
  EXPECT_THAT(judge_clock(best).text, HasSubstr("ahead of this host's"));
  EXPECT_EQ(judge_clock({ms(150), ms(60)}).level, Level::kOk) << "it may be 90 ms";
  EXPECT_EQ(judge_clock({ms(-3000), ms(1)}).level, Level::kWarning);
  EXPECT_THAT(judge_clock({ms(-3000), ms(1)}).text, StartsWith("3.00 s behind this host's"));
}

TEST(Checks, VariablesThatAreReadAndThoseThatAreNot) {
  EXPECT_EQ(check_variables({{"PATH", "/bin"}, {"HOME", "/"}})[0].text, "none that dtrain reads is set");
  const std::vector<Finding> findings = check_variables({{"DTRAIN_CALIBRATE", "false"},
                                                         {"DTRAIN_COMMAND", "/bin/dtrain"},
                                                         {"DTRAIN_UNHEARD_OF", ""},
                                                         {"OMP_NUM_THREADS", "2"},
                                                         {"DTRAIN_CLUSTER", "c.yaml"}});
  ASSERT_EQ(findings.size(), 3u) << "dtrain itself sets DTRAIN_COMMAND";
  EXPECT_EQ(findings[0].level, Level::kOk);
  EXPECT_EQ(findings[0].text, "DTRAIN_CLUSTER=c.yaml, OMP_NUM_THREADS=2");
  EXPECT_EQ(findings[1].level, Level::kWarning);
  EXPECT_THAT(findings[1].text, StartsWith("DTRAIN_CALIBRATE is set, and no program"));
  EXPECT_EQ(findings[1].remedy, "did you mean DTRAIN_CALIBRATION?");
  EXPECT_THAT(findings[2].remedy, StartsWith("unset it"));
}

TEST(Checks, AFolderThatIsNotThereYet) {
  const TemporaryFolder folder;
  EXPECT_EQ(existing_part(folder.path() / "runs/deep"), folder.path());
  EXPECT_EQ(existing_part("/nowhere/at/all"), "/");
  const std::vector<Finding> findings = check_folder(folder.path() / "runs");
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_THAT(findings[0].text, HasSubstr(" free in " + folder.path().string()));
  EXPECT_TRUE(fs::is_empty(folder.path())) << "nothing is left behind";
}

TEST(Findings, AreSaidLineByLine) {
  const std::vector<HostFindings> hosts{
      {"a", {ok("clock", "right")}}, {"b", {problem("remote shell", "refused", "ask"), warning("MPI", "old", "new")}}};
  EXPECT_EQ(render(hosts),
            "a\n"
            "  ok        clock           right\n"
            "b\n"
            "  problem   remote shell    refused\n"
            "                            -> ask\n"
            "  warning   MPI             old\n"
            "                            -> new\n"
            "1 problem, 1 warning\n");
  EXPECT_EQ(worst(hosts), Level::kProblem);
  EXPECT_EQ(worst_of(hosts, "MPI"), Level::kWarning);
  EXPECT_EQ(to_json(findings_of(to_json(hosts[1].findings))), to_json(hosts[1].findings));
}

// The finding of a check on a host; fails the test where there is none.
Json finding(const Json& report, const std::string& check, std::size_t host = 0) {
  for (const Json& one : report.at("hosts").at(host).at("findings")) {
    if (one.at("check") == check) return one;
  }
  ADD_FAILURE() << "no finding about " << check << " in " << report.dump();
  return {{"level", ""}, {"text", ""}, {"remedy", ""}};
}

struct Report {
  Json json;
  int code = -1;
};

// `before`: what a shell does before it becomes `dtrain doctor`.
Report doctor_of(const TestRun& run, const std::string& before = "true", const std::string& options = {}) {
  Command command(run.folder(), {"/bin/sh", "-c", before + " && exec " + bin("dtrain") + " doctor --json " + options});
  const ExitStatus status = command.wait();
  const Json json = Json::parse(command.out(), nullptr, false);
  EXPECT_TRUE(json.is_object()) << command.out() << command.err();
  return {json, status.code};
}

std::string with_cluster(const TestRun& run, const std::string& text) {
  std::ofstream(run.folder() / "c.yaml") << text;
  return "--cluster c.yaml";
}

// A remote shell without a network: what it does with its host and its command is `script`'s business.
std::string far_host(const TestRun& run, const std::string& script) {
  const fs::path shell = run.folder() / "shell";
  std::ofstream(shell) << "#!/bin/sh\nhost=$1\nshift\n" << script << "\n";
  fs::permissions(shell, fs::perms::owner_all);
  return with_cluster(run,
                      "agents: [{id: here, host: localhost, slots: 1}, {id: far, host: far.invalid, slots: 1}]\n"
                      "launcher: {type: mpi, options: [--mca, plm_rsh_agent, \"" +
                          shell.string() + "\"]}\n");
}

TEST(Doctor, SaysWhyAProgramIsMissing) {
  const rank::MissingProgram without = rank::missing_program("dtrain-worker", false);
  EXPECT_THAT(without.text, HasSubstr("was built without libtorch"));
  EXPECT_THAT(without.remedy, HasSubstr("DTRAIN_TORCH=ON"));
  const rank::MissingProgram unbuilt = rank::missing_program("dtrain-worker", true);
  EXPECT_EQ(unbuilt.text, "dtrain-worker is neither beside dtrain nor in PATH");
  EXPECT_THAT(unbuilt.remedy, HasSubstr("cmake --build build/release --target dtrain-worker"));
}

TEST(Doctor, ThisMachine) {
  const TestRun run;
  const Report report = doctor_of(run);
  for (const char* check : {"libtorch", "MPI", "shared memory", "/dev/shm", "open files", "locked memory", "interfaces",
                            "disk space", "disk speed", "ledger", "variables", "cluster"}) {
    EXPECT_NE(finding(report.json, check).at("text"), "") << check;
  }
  EXPECT_EQ(report.code, report.json.at("worst") == "problem" ? 1 : 0);
  EXPECT_EQ(finding(report.json, "shared memory").at("level"), "ok");
  EXPECT_FALSE(fs::exists(run.folder() / "runs"));
  const Result text = dtrain(run, {"doctor"});
  EXPECT_THAT(text.out, HasSubstr(" (this host)\n  "));
  EXPECT_THAT(text.out, HasSubstr("\n  ok        shared memory   memfd works"));
  EXPECT_EQ(text.code, report.code);
}

TEST(Doctor, FewOpenFiles) {
  const TestRun run;
  const Report report = doctor_of(run, "ulimit -n 100");
  EXPECT_EQ(report.code, 1);
  EXPECT_EQ(finding(report.json, "open files").at("level"), "problem");
  EXPECT_THAT(finding(report.json, "open files").at("text").get<std::string>(), StartsWith("100 for a process"));
}

TEST(Doctor, AnInterfaceThatIsNotThere) {
  const TestRun run;
  const auto asking_for = [&](const std::string& interface) {
    return doctor_of(run, "true",
                     with_cluster(run,
                                  "agents: [{id: a, host: localhost, slots: 1}]\ntask_container_defaults: "
                                  "{dtrain_network_interface: " +
                                      interface + "}\n"));
  };
  const Report wrong = asking_for("eth77");
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(finding(wrong.json, "network", 1).at("text").get<std::string>(),
              HasSubstr("c.yaml: dtrain_network_interface: this host has no interface 'eth77'"));
  EXPECT_EQ(finding(asking_for("127.0.0.0/8").json, "network", 1).at("level"), "ok");
}

TEST(Doctor, AClusterFileThatIsWrong) {
  const TestRun run;
  const Report report = doctor_of(run, "true", with_cluster(run, "agents: [{id: a}]\n"));
  EXPECT_EQ(report.code, 1);
  EXPECT_THAT(finding(report.json, "cluster").at("text").get<std::string>(), HasSubstr("c.yaml:1"));
}

TEST(Doctor, AFullDisk) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  const TestRun run;
  const std::string small = (run.folder() / "small").string();
  fs::create_directory(small);
  Command command(run.folder(),
                  {"unshare", "--mount", "/bin/sh", "-c",
                   "mount -t tmpfs -o size=1m tmpfs " + small + " && head -c 2m /dev/zero >" + small +
                       "/full 2>/dev/null; exec " + bin("dtrain") + " doctor --json --runs " + small + "/runs"});
  const ExitStatus status = command.wait();
  if (command.out().empty()) GTEST_SKIP() << "no mounting here: " << command.err();
  EXPECT_EQ(status.code, 1);
  const Json report = Json::parse(command.out());
  EXPECT_EQ(finding(report, "disk space").at("level"), "problem");
  EXPECT_THAT(finding(report, "disk space").at("text").get<std::string>(), HasSubstr("0 B free in " + small));
}

TEST(Doctor, AHostThatAnswers) {
  const TestRun run;
  const Report report = doctor_of(run, "true", far_host(run, "echo 'Welcome!'; exec /bin/sh -c \"$*\""));
  for (const char* check : {"remote shell", "clock", "run folder"})
    EXPECT_EQ(finding(report.json, check, 1).at("level"), "ok") << check;
  EXPECT_THAT(finding(report.json, "run folder", 1).at("text").get<std::string>(), HasSubstr("is shared"));
  EXPECT_EQ(finding(report.json, "open files", 1).at("text"), finding(report.json, "open files").at("text"));
  EXPECT_EQ(report.json.at("hosts")[1].at("host"), "far.invalid");
}

TEST(Doctor, HostsThatDoNot) {
  const TestRun run;
  const auto said = [&](const std::string& script) {
    const Report report = doctor_of(run, "true", far_host(run, script));
    EXPECT_EQ(report.code, 1);
    EXPECT_EQ(report.json.at("hosts").size(), 2u) << "no network is measured";
    return finding(report.json, "remote shell", 1).at("text").get<std::string>();
  };
  EXPECT_THAT(said("echo \"$host: Permission denied\" >&2; exit 255"),
              HasSubstr("host far.invalid cannot be reached by " + (run.folder() / "shell").string() +
                        ": far.invalid: Permission denied"));
  EXPECT_THAT(said("exit 127"), HasSubstr("host far.invalid has no program " + fs::canonical(bin("dtrain")).string()));
  EXPECT_THAT(said("echo '{\"dtrain\":\"0.0.1\"}'"), HasSubstr("host far.invalid has dtrain 0.0.1, and this host "));
}

}  // namespace
}  // namespace dtrain::launcher
