#include "dtrain/base/limits.h"

#include <csignal>
#include <functional>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/cgroup.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;  // it takes terabytes of address space, and ends a process that gets no memory
#else
constexpr bool kIsSanitized = false;
#endif

void limit(__rlimit_resource resource, rlim_t value) {
  const rlimit both{value, value};
  if (::setrlimit(resource, &both) != 0) ::_exit(99);
}

struct Ended {
  std::string text;  // what `work` returned, and what the process wrote to standard error
  int status = -1;
};

// Calls `work` in a process of its own.
Ended in_child(const std::function<std::string()>& work) {
  Pipe pipe = make_pipe();
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe.writer.get(), STDERR_FILENO);
    const std::string text = work();
    ::_exit(write_all(pipe.writer.get(), text) == text.size() ? 0 : 98);
  }
  pipe.writer.reset();
  Ended ended{.text = read_to_end(pipe.reader.get()).value()};
  ::waitpid(child, &ended.status, 0);
  return ended;
}

std::string error_at_limit(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return describe(error) + " | " + error.remedy();
  } catch (const std::exception& error) {
    return describe(error);
  }
  return "no error";
}

void take_all_memory() {
  std::vector<std::string> taken;
  for (;;) taken.emplace_back(16u << 20, 'x');
}

TEST(LimitOfMemory, IsNamedForABadAlloc) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer needs more memory than the limits allow";
  const Ended ended = in_child([] {
    limit(RLIMIT_AS, 1u << 28);
    return error_at_limit(take_all_memory);
  });
  EXPECT_EQ(ended.status, 0);
  EXPECT_THAT(ended.text,
              StartsWith("out of memory: RLIMIT_AS lets this process have 256.0 MiB of address space, and it "
                         "has "));
  EXPECT_THAT(in_child([] {
                limit(RLIMIT_DATA, 1u << 27);
                return error_at_limit(take_all_memory);
              }).text,
              StartsWith("out of memory: RLIMIT_DATA lets this process have 128.0 MiB of data, and it has "));
  EXPECT_THAT(describe(std::bad_alloc()), MatchesRegex("out of memory: this machine has .* left: end other .*"));
}

TEST(LimitOfMemory, IsNamedForTheAllocatorsOfOthers) {
  const std::string libtorch =
      "the model failed: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you "
      "tried to allocate 4096000 bytes. Error code 12 (Cannot allocate memory)";
  EXPECT_THAT(describe(Error(libtorch)),
              StartsWith("out of memory: the model failed: 4096000 bytes could not be had; this machine has "));
  EXPECT_THAT(describe(Error("DefaultCPUAllocator: can't allocate memory: you tried to allocate 7 bytes.\nstack")),
              StartsWith("out of memory: 7 bytes could not be had\nstack; "));
  EXPECT_THAT(describe(Error("MemoryError: Unable to allocate 3.73 GiB for an array")),
              StartsWith("out of memory: MemoryError: Unable to allocate 3.73 GiB for an array; this machine "));
  const std::string once = describe(Error(libtorch));
  EXPECT_EQ(describe(Error(once)), once) << "another process tells the error again";
  EXPECT_EQ(describe(Error("can't allocate memory: you tried to allocate ")).substr(0, 15), "out of memory: ");
  EXPECT_EQ(describe(Error("a plain error")), "a plain error");
}

TEST(LimitOfMemory, AnExceptionThatLeavesAThreadIsOneLineAndNoAbort) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer needs more memory than the limits allow";
  const Ended ended = in_child([]() -> std::string {
    limit(RLIMIT_AS, 1u << 28);
    prepare_for_limits();
    start_thread("the test", take_all_memory).join();
    return "it went on";
  });
  ASSERT_TRUE(WIFEXITED(ended.status)) << ended.text;
  EXPECT_EQ(WEXITSTATUS(ended.status), 1);
  EXPECT_THAT(ended.text, MatchesRegex("dtrain: out of memory: RLIMIT_AS lets [^\n]*\n"));
  const Ended reported = in_child([]() -> std::string {
    prepare_for_limits([](const std::exception& error) { write_all(STDERR_FILENO, error.what()); });
    std::thread([] { throw std::bad_alloc(); }).join();
    return "it went on";
  });
  EXPECT_EQ(reported.text, "std::bad_alloc");
  const Ended other = in_child([]() -> std::string {
    prepare_for_limits();
    std::thread([] { throw std::runtime_error("of another kind"); }).join();
    return "it went on";
  });
  EXPECT_TRUE(WIFSIGNALED(other.status) && WTERMSIG(other.status) == SIGABRT) << "as without the call";
  EXPECT_THAT(other.text, HasSubstr("of another kind"));
}

TEST(LimitOfFileSize, IsAnErrorThatNamesItAndNoSignal) {
  const TemporaryFolder folder;
  const Ended ended = in_child([&] {
    limit(RLIMIT_FSIZE, 4096);
    prepare_for_limits();
    return error_at_limit([&] { write_file_atomic(folder.path() / "long", std::string(10'000, 'x')); });
  });
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.text,
            "cannot write " + (folder.path() / "long").string() +
                ": File too large | RLIMIT_FSIZE lets a file of this process have 4.0 KiB: raise it (ulimit "
                "-f)");
}

TEST(LimitOfProcesses, IsNamedForThreadsAndProcesses) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be a user without processes";
  const Ended ended = in_child([] {
    limit(RLIMIT_NPROC, 1);
    if (::setresuid(61'237, 61'237, 61'237) != 0) return std::string("no such user");
    return error_at_limit([] { start_thread("the test", [] {}).join(); }) + "\n" +
           error_at_limit([] { std::thread([] {}).join(); });
  });
  const std::string limit_text =
      "RLIMIT_NPROC lets this user have 1 processes and threads at a time: raise it (ulimit "
      "-u), or end other processes of the user";
  EXPECT_EQ(ended.text, "cannot start the thread of the test: Resource temporarily unavailable | " + limit_text +
                            "\na thread could not be started: Resource temporarily unavailable; " + limit_text);
}

TEST(LimitOfProcesses, OfACgroupIsNamedWhereItIsReached) {
  const TemporaryFolder root;
  const auto write = [&](const std::string& file, const std::string& text) {
    const auto path = root.path() / file;
    std::filesystem::create_directories(path.parent_path());
    write_file_atomic(path, text);
  };
  write("proc/self/cgroup", "0::/user/job\n");
  write("proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  write("sys/fs/cgroup/user/job/pids.max", "max\n");
  write("sys/fs/cgroup/user/job/pids.current", "40\n");
  write("sys/fs/cgroup/user/pids.max", "64\n");
  write("sys/fs/cgroup/user/pids.current", "63\n");
  EXPECT_FALSE(full_of_processes(cgroups_of(0, root.path())));
  write("sys/fs/cgroup/user/pids.current", "64\n");
  const auto full = full_of_processes(cgroups_of(0, root.path()));
  ASSERT_TRUE(full);
  EXPECT_EQ(full->group, "/user");
  EXPECT_EQ(full->most, 64u);
}

TEST(WriteFileAtomic, GivesTheModeThatIsAskedForWhateverTheUmask) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "private";
  for (const mode_t mask : {0, 022, 077}) {
    const mode_t before = ::umask(mask);
    write_file_atomic(file, "x", 0640);
    EXPECT_EQ(static_cast<unsigned>(std::filesystem::status(file).permissions()), 0640u);
    write_file_atomic(file, "x");
    EXPECT_EQ(static_cast<unsigned>(std::filesystem::status(file).permissions()), 0666u & ~mask);
    ::umask(before);
  }
}

}  // namespace
}  // namespace dtrain
