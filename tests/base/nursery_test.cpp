#include "dtrain/base/nursery.h"

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../harness/eventually.h"
#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"

namespace dtrain {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

class NurseryTest : public testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer has a thread of its own in each process";
#endif
  }
};

ProcessOptions program(const std::string& before = "nothing") {
  return {.command = {NURSERY_CHILD, before}, .environment = {{"COLOUR", "red"}}};
}

bool settles(Nursery& nursery) {
  return eventually([&] { return nursery.look() != Nursery::State::kLoading; });
}

struct Answer {
  std::optional<Process> process;
  Json json;
};

// What a process from the nursery says of itself. Empty: the nursery has made none.
Answer ask(Nursery& nursery, ProcessOptions options) {
  Pipe pipe = make_pipe();
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  options.fds = {{0, nothing.get()}, {1, nothing.get()}, {2, nothing.get()}, {9, pipe.writer.get()}};
  Answer answer{nursery.start(options), {}};
  pipe.writer.reset();
  if (!answer.process) return answer;
  char buffer[4096];
  const ssize_t count = ::read(pipe.reader.get(), buffer, sizeof buffer);
  if (count > 0) answer.json = Json::parse(std::string(buffer, static_cast<std::size_t>(count)));
  return answer;
}

// No zombie either.
bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

TEST_F(NurseryTest, NewProcessesAreOwnChildrenWithWhatTheyWereGiven) {
  {
    Nursery nursery(program());
    ASSERT_TRUE(settles(nursery));
    ASSERT_EQ(nursery.look(), Nursery::State::kReady) << nursery.why_ended();
    const TemporaryFolder folder;
    for (const std::string rank : {"0", "1"}) {
      ProcessOptions options = program();
      options.environment["DTRAIN_RANK"] = rank;
      options.environment["DTRAIN_ACTION"] = "exit 7";
      options.working_folder = folder.path();
      Answer answer = ask(nursery, options);
      ASSERT_TRUE(answer.process);
      const pid_t pid = answer.process->pid();
      EXPECT_EQ(answer.json.at("pid"), pid);
      EXPECT_EQ(answer.json.at("group"), pid);
      EXPECT_EQ(answer.json.at("parent"), ::getpid());
      EXPECT_EQ(answer.json.at("DTRAIN_RANK"), rank);
      EXPECT_EQ(answer.json.at("DTRAIN_NURSERY"), "(not set)");
      EXPECT_EQ(answer.json.at("COLOUR"), "red");
      EXPECT_EQ(answer.json.at("folder"), std::filesystem::canonical(folder.path()).string());
      EXPECT_EQ(answer.json.at("descriptors"), "0 1 2 9 ");
      EXPECT_EQ(answer.json.at("priority"), ::getpriority(PRIO_PROCESS, 0));
      EXPECT_EQ(answer.process->wait().describe(), "exit status 7");
    }
  }
  EXPECT_FALSE(has_children());
}

TEST_F(NurseryTest, SaysExactlyHowAProcessHasEnded) {
  Nursery nursery(program());
  ASSERT_TRUE(settles(nursery));
  ProcessOptions options = program();
  options.environment["DTRAIN_ACTION"] = "signal " + std::to_string(SIGSEGV);
  Answer answer = ask(nursery, options);
  ASSERT_TRUE(answer.process);
  EXPECT_EQ(answer.process->wait().signal, SIGSEGV);
}

TEST_F(NurseryTest, BindsAProcessToItsCores) {
  cpu_set_t mine;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mine, &mine), 0);
  int last = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mine)) last = cpu;
  }
  ProcessOptions options = program();
  options.cpus = {last};
  Nursery nursery(options);
  ASSERT_TRUE(settles(nursery));
  const Answer answer = ask(nursery, options);
  ASSERT_TRUE(answer.process);
  EXPECT_EQ(answer.json.at("cpus"), std::to_string(last) + " ");
  ProcessOptions others = program();
  EXPECT_FALSE(ask(nursery, others).process) << "libraries may have counted the cores";
  EXPECT_EQ(nursery.look(), Nursery::State::kReady);
}

TEST_F(NurseryTest, MakesNoProcessForOtherConditionsThanItHasLoadedUnder) {
  Nursery nursery(program());
  ASSERT_TRUE(settles(nursery));
  ProcessOptions other_variable = program();
  other_variable.environment["COLOUR"] = "blue";
  EXPECT_FALSE(ask(nursery, other_variable).process);
  EXPECT_FALSE(ask(nursery, program("other arguments")).process);
  EXPECT_TRUE(ask(nursery, program()).process);
}

TEST_F(NurseryTest, ItsDeathLeavesItsProcesses) {
  Nursery nursery(program());
  ASSERT_TRUE(settles(nursery));
  ProcessOptions options = program();
  options.environment["DTRAIN_ACTION"] = "pause";
  Answer answer = ask(nursery, options);
  ASSERT_TRUE(answer.process);
  ::kill(nursery.pid(), SIGKILL);
  EXPECT_TRUE(eventually([&] { return nursery.look() == Nursery::State::kEnded; }));
  EXPECT_THAT(nursery.why_ended(), HasSubstr("SIGKILL"));
  EXPECT_FALSE(answer.process->wait(100ms));
  EXPECT_FALSE(ask(nursery, program()).process);
  answer.process->kill(SIGTERM);
  EXPECT_EQ(answer.process->wait().signal, SIGTERM);
}

// A nursery that was killed a moment ago, or is stopped: nobody has noticed yet.
TEST_F(NurseryTest, OneThatDoesNotAnswerIsEnded) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    {
      Nursery nursery(program());
      ASSERT_TRUE(settles(nursery));
      ::kill(nursery.pid(), signal);
      EXPECT_FALSE(ask(nursery, program()).process);
      EXPECT_EQ(nursery.look(), Nursery::State::kEnded);
    }
    EXPECT_FALSE(has_children());
  }
}

TEST_F(NurseryTest, RefusesWhatAForkWouldNotCopy) {
  const std::pair<const char*, const char*> cases[] = {{"threads", "has 2 threads"},
                                                       {"file", "has opened /"},
                                                       {"process", "has started other processes"},
                                                       {"early_end", "exit status 3"}};
  for (const auto& [before, why] : cases) {
    Nursery nursery(program(before));
    ASSERT_TRUE(settles(nursery));
    EXPECT_EQ(nursery.look(), Nursery::State::kEnded);
    EXPECT_THAT(nursery.why_ended(), HasSubstr(why));
  }
}

TEST_F(NurseryTest, EndsWithItsParent) {
  Pipe pipe = make_pipe();
  const pid_t parent = ::fork();
  if (parent == 0) {
    Nursery nursery(program());
    settles(nursery);
    const pid_t pid = nursery.pid();
    static_cast<void>(!::write(pipe.writer.get(), &pid, sizeof pid));
    ::raise(SIGKILL);
  }
  pid_t nursery = 0;
  ASSERT_EQ(::read(pipe.reader.get(), &nursery, sizeof nursery), static_cast<ssize_t>(sizeof nursery));
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  EXPECT_TRUE(eventually([&] {
    std::ifstream file("/proc/" + std::to_string(nursery) + "/stat");
    std::string text;
    return !std::getline(file, text) || text[text.rfind(')') + 2] == 'Z';
  }));
}

TEST_F(NurseryTest, AnyOtherProcessIsNone) {
  serve_nursery();  // it returns
}

}  // namespace
}  // namespace dtrain
