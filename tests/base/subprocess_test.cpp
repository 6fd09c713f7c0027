#include "dtrain/base/subprocess.h"

#include <cerrno>
#include <csignal>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

// What a child answers on its descriptor 9, and how it ends.
class Conversation {
 public:
  Conversation() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("pipe", errno);
    reader_.reset(ends[0]);
    writer_.reset(ends[1]);
  }

  Process start(const std::vector<std::string>& arguments, ProcessOptions options = {}) {
    options.command = {BASE_CHILD};
    options.command.insert(options.command.end(), arguments.begin(), arguments.end());
    options.fds[9] = writer_.get();
    Process process = Process::start(options);
    writer_.reset();
    return process;
  }

  // One piece of the answer; empty when all who could answer are gone.
  std::string read_some() {
    char buffer[4096];
    const ssize_t count = ::read(reader_.get(), buffer, sizeof buffer);
    return count > 0 ? std::string(buffer, static_cast<std::size_t>(count)) : "";
  }

  std::string ask(const std::vector<std::string>& arguments, ProcessOptions options = {}) {
    Process process = start(arguments, std::move(options));
    std::string text;
    while (true) {
      const std::string piece = read_some();
      if (piece.empty()) break;
      text += piece;
    }
    EXPECT_TRUE(process.wait().success());
    return text;
  }

 private:
  UniqueFd reader_;
  UniqueFd writer_;
};

std::string ask(const std::vector<std::string>& arguments, ProcessOptions options = {}) {
  return Conversation().ask(arguments, std::move(options));
}

ExitStatus run(const std::vector<std::string>& arguments) {
  ProcessOptions options;
  options.command = {BASE_CHILD};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  return Process::start(options).wait();
}

bool exists(pid_t pid) {
  return ::kill(pid, 0) == 0;
}

TEST(Process, ExitStatusAndSignalAreToldApart) {
  EXPECT_TRUE(run({"exit", "0"}).success());
  EXPECT_EQ(run({"exit", "3"}).describe(), "exit status 3");
  EXPECT_FALSE(run({"exit", "3"}).success());
  EXPECT_EQ(run({"signal", "9"}).describe(), "killed by signal 9 (SIGKILL)");
  EXPECT_EQ(run({"signal", "15"}).signal, SIGTERM);
}

TEST(Process, IsFoundInPath) {
  ProcessOptions options;
  options.command = {"sh", "-c", "exit 5"};
  EXPECT_EQ(Process::start(options).wait().code, 5);
}

TEST(Process, WhatCannotBeStartedIsAnErrorHere) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "text", "not a program");
  const auto error_of = [](const std::string& program, ProcessOptions options) -> std::string {
    options.command = {program};
    try {
      Process::start(options);
    } catch (const SystemError& error) {
      return error.what();
    }
    return "started";
  };
  EXPECT_EQ(error_of("/no/such/program", {}), "cannot start '/no/such/program': No such file or directory");
  EXPECT_EQ(error_of("no-such-program-anywhere", {}),
            "cannot start 'no-such-program-anywhere': No such file or directory");
  EXPECT_THAT(error_of(folder / "text", {}), HasSubstr("Permission denied"));
  ProcessOptions in_no_folder;
  in_no_folder.working_folder = "/no/such/folder";
  EXPECT_THAT(error_of(BASE_CHILD, in_no_folder), HasSubstr("the working folder /no/such/folder: No such file"));
  ProcessOptions on_no_core;
  on_no_core.cpus = {1000};
  EXPECT_THAT(error_of(BASE_CHILD, on_no_core), HasSubstr("binding it to cores 1000"));
  EXPECT_THROW(Process::start({}), SystemError);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a failed start must leave no zombie";
}

TEST(Process, EnvironmentIsAddedReplacedAndRemoved) {
  ::setenv("DTRAIN_TEST_A", "here", 1);
  EXPECT_EQ(ask({"environment", "DTRAIN_TEST_A"}), "here");
  ProcessOptions options;
  options.environment = {{"DTRAIN_TEST_A", "there"}, {"DTRAIN_TEST_B", "a=b c"}};
  EXPECT_EQ(ask({"environment", "DTRAIN_TEST_A"}, options), "there");
  EXPECT_EQ(ask({"environment", "DTRAIN_TEST_B"}, options), "a=b c");
  ProcessOptions without;
  without.unset = {"DTRAIN_TEST_A"};
  EXPECT_EQ(ask({"environment", "DTRAIN_TEST_A"}, without), "(not set)");
  ::unsetenv("DTRAIN_TEST_A");
}

TEST(Process, GetsItsDescriptorsAndNoOthers) {
  // Not close-on-exec: a library's careless descriptor.
  const UniqueFd careless(::open("/dev/null", O_RDONLY));
  ASSERT_TRUE(careless);
  EXPECT_EQ(ask({"descriptors"}), "0 1 2 9 ");
}

TEST(Process, DescriptorsMayTradePlaces) {
  const TemporaryFolder folder;
  const UniqueFd a(::open((folder / "a").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const UniqueFd b(::open((folder / "b").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ProcessOptions options;
  options.command = {"sh", "-c",
                     "echo for-a >&" + std::to_string(b.get()) + "; echo for-b >&" + std::to_string(a.get())};
  options.fds = {{a.get(), b.get()}, {b.get(), a.get()}};
  ASSERT_LT(std::max(a.get(), b.get()), 10) << "sh takes one digit";
  EXPECT_TRUE(Process::start(options).wait().success());
  EXPECT_EQ(read_file(folder / "a"), "for-a\n");
  EXPECT_EQ(read_file(folder / "b"), "for-b\n");
}

TEST(Process, IsBoundToItsCores) {
  cpu_set_t mine;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mine, &mine), 0);
  int last = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) last = CPU_ISSET(cpu, &mine) ? cpu : last;
  ProcessOptions options;
  options.cpus = {last};
  EXPECT_EQ(ask({"affinity"}, options), std::to_string(last) + " ");
}

TEST(Process, StartsInItsFolder) {
  const TemporaryFolder folder;
  ProcessOptions options;
  options.working_folder = folder.path();
  EXPECT_EQ(ask({"folder"}, options), std::filesystem::canonical(folder.path()).string());
}

TEST(Process, StartsWithDefaultSignals) {
  const auto old_usr1 = ::signal(SIGUSR1, [](int) {});
  const auto old_pipe = ::signal(SIGPIPE, SIG_IGN);
  sigset_t term;
  ::sigemptyset(&term);
  ::sigaddset(&term, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &term, nullptr);
  EXPECT_EQ(ask({"signals"}), "open default default");
  ::pthread_sigmask(SIG_UNBLOCK, &term, nullptr);
  ::signal(SIGUSR1, old_usr1);
  ::signal(SIGPIPE, old_pipe);
}

TEST(Process, IsInAGroupOfItsOwnUnlessNotWanted) {
  const std::string own = ask({"group"});
  const auto space = own.find(' ');
  EXPECT_EQ(own.substr(0, space), own.substr(space + 1));
  ProcessOptions options;
  options.new_process_group = false;
  EXPECT_THAT(ask({"group"}, options), testing::StartsWith(std::to_string(::getpgrp()) + " "));
}

TEST(Process, WaitEndsWithTheTimeOrWithTheProcess) {
  Conversation conversation;
  Process process = conversation.start({"sleep"});
  EXPECT_EQ(conversation.read_some(), "ready");
  EXPECT_FALSE(process.wait(1ms));
  process.kill(SIGTERM);
  EXPECT_EQ(process.wait().signal, SIGTERM);
  EXPECT_EQ(process.wait(0ms)->signal, SIGTERM) << "the status can be asked for again";
}

TEST(Process, DestructorKillsAndReaps) {
  pid_t pid = -1;
  {
    Conversation conversation;
    const Process process = conversation.start({"sleep"});
    EXPECT_EQ(conversation.read_some(), "ready");
    pid = process.pid();
    EXPECT_TRUE(exists(pid));
  }
  EXPECT_FALSE(exists(pid)) << "neither process nor zombie";
}

TEST(Process, WhatItLeavesBehindEndsWithIt) {
  Conversation conversation;
  Process process = conversation.start({"leave-child"});
  EXPECT_TRUE(process.wait().success());
  EXPECT_EQ(conversation.read_some(), "") << "the grandchild's copy of the pipe is closed: it is gone";
}

TEST(Process, MovesKeepExactlyOneOwner) {
  Conversation first_talk;
  Conversation second_talk;
  Process first = first_talk.start({"sleep"});
  Process second = second_talk.start({"sleep"});
  const pid_t first_pid = first.pid();
  const pid_t second_pid = second.pid();
  first = std::move(second);
  EXPECT_FALSE(exists(first_pid)) << "what was assigned over is ended";
  EXPECT_TRUE(exists(second_pid));
  EXPECT_EQ(first.pid(), second_pid);
}

TEST(Process, DetachedProcessesRunOn) {
  Conversation conversation;
  pid_t pid = -1;
  {
    Process process = conversation.start({"sleep"});
    pid = process.pid();
    EXPECT_EQ(conversation.read_some(), "ready");
    process.detach();
  }
  EXPECT_TRUE(exists(pid));
  ::kill(pid, SIGKILL);
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
}

TEST(Pipe, IsReadUntilTheLastWriterHasClosedIt) {
  Pipe pipe = make_pipe();
  ASSERT_EQ(write_all(pipe.writer.get(), "one\n"), 4U);
  EXPECT_EQ(read_to_end(pipe.reader.get(), std::chrono::steady_clock::now() - 1s), std::nullopt);
  ASSERT_EQ(write_all(pipe.writer.get(), "two\n"), 4U);
  pipe.writer.reset();
  EXPECT_EQ(read_to_end(pipe.reader.get()), "one\ntwo\n");
}

TEST(Paths, OfThisProgramAndItsLibraries) {
  EXPECT_EQ(executable_path().filename(), "base_test");
  EXPECT_TRUE(
      std::filesystem::exists(library_folder(reinterpret_cast<const void*>(&executable_path)) / "libdtrain_base.so"));
}

}  // namespace
}  // namespace dtrain
