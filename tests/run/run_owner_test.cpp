// Who carries out a run, where no lock says so.
#include "dtrain/rank/run_folder.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/host/processes.h"
#include "dtrain/rank/host_claims.h"
#include "run_harness.h"

namespace dtrain::rank {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// So short that a test waits for little, so long that a busy machine does not miss a beat.
constexpr OwnerTimes kTimes{.beat = milliseconds(20), .silence = milliseconds(2000)};

OwnerProcess elsewhere() {
  return {.host = "nodeb", .host_key = "another boot", .pid = 4711, .start = 1};
}

std::string refusal(const std::filesystem::path& run, const OwnerProcess& self) {
  try {
    const RunOwner owner(run, self, kTimes);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(RunOwner, OneThatEndsLeavesTheRunToOthers) {
  const TemporaryFolder folder;
  std::optional<RunOwner> there(std::in_place, folder.path(), elsewhere(), kTimes);
  EXPECT_NE(read_file(folder.path() / ".owner"), "");
  there.reset();
  EXPECT_EQ(read_file(folder.path() / ".owner"), "");
  EXPECT_EQ(refusal(folder.path(), OwnerProcess::self()), "");
}

TEST(RunOwner, OneOnAnotherHostIsSeenByItsBeats) {
  const TemporaryFolder folder;
  const RunOwner there(folder.path(), elsewhere(), kTimes);
  EXPECT_THAT(refusal(folder.path(), OwnerProcess::self()), HasSubstr("process 4711 on nodeb carries it out"));
}

TEST(RunOwner, OneOnAHostWithoutWhichOthersGoOnDoesNotCount) {
  const TemporaryFolder folder;
  const RunOwner there(folder.path(), elsewhere(), kTimes);
  ASSERT_TRUE(owner_elsewhere(folder.path(), kTimes));
  EXPECT_EQ(owner_elsewhere(folder.path(), kTimes)->host, "nodeb");
  const RunOwner here(folder.path(), OwnerProcess::self(), kTimes, {"nodec", "nodeb"});
  EXPECT_FALSE(owner_elsewhere(folder.path(), kTimes));
  EXPECT_TRUE(owner_here(folder.path()));
}

TEST(HostClaim, OnePartOfTheHostsAloneGoesOn) {
  const TemporaryFolder folder;
  const RunFolder run{folder.path()};
  const HostClaim one{.hosts = {0, 2}, .gone = {"nodeb"}}, other{.hosts = {1}, .gone = {"nodea", "nodec"}};
  EXPECT_THAT(hosts_gone(run, 3), testing::IsEmpty());
  EXPECT_TRUE(claim_attempt(run, 3, one));
  EXPECT_FALSE(claim_attempt(run, 3, other));
  EXPECT_TRUE(claim_attempt(run, 3, one)) << "its meeting was broken off, and is held again";
  EXPECT_EQ(hosts_gone(run, 3), one.gone);
  EXPECT_TRUE(claim_attempt(run, 4, other)) << "each attempt is claimed by itself";
  forget_claims(run);
  EXPECT_TRUE(claim_attempt(run, 3, other));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "nothing else is left";
}

TEST(RunOwner, OneThatWasKilledOnAnotherHostIsNotWaitedForLong) {
  const TemporaryFolder folder;
  std::string left;
  {
    const RunOwner there(folder.path(), elsewhere(), kTimes);
    left = read_file(folder.path() / ".owner");
  }
  for (const bool long_ago : {false, true}) {
    std::ofstream(folder.path() / ".owner") << left;
    const timespec hour_ago[2] = {{::time(nullptr) - 3600, 0}, {::time(nullptr) - 3600, 0}};
    if (long_ago) {
      ASSERT_EQ(::utimensat(AT_FDCWD, (folder.path() / ".owner").c_str(), hour_ago, 0), 0);
    }
    EXPECT_EQ(refusal(folder.path(), OwnerProcess::self()), "");
  }
}

TEST(RunOwner, OneOfThisHostIsSeenByItsProcess) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  OwnerProcess other = OwnerProcess::self();
  other.pid = child;
  other.start = host::start_ticks(child);
  std::string left;
  {
    const RunOwner there(folder.path(), other, kTimes);
    left = read_file(folder.path() / ".owner");
  }
  std::ofstream(folder.path() / ".owner") << left;  // it has not touched the file for long: it may be stopped
  EXPECT_THAT(refusal(folder.path(), OwnerProcess::self()), HasSubstr("process " + std::to_string(child) + " on "));
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(refusal(folder.path(), OwnerProcess::self()), "");
}

TEST(RunOwner, ACopyOfTheFolderHasNone) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "run");
  const RunOwner there(folder.path() / "run", elsewhere(), kTimes);
  std::filesystem::copy(folder.path() / "run", folder.path() / "copy");
  EXPECT_EQ(refusal(folder.path() / "copy", OwnerProcess::self()), "");
}

TEST(RunOwner, WhatCannotBeReadOwnsNothing) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / ".owner") << "{\"host\": 7";
  EXPECT_EQ(refusal(folder.path(), OwnerProcess::self()), "");
}

}  // namespace
}  // namespace dtrain::rank
