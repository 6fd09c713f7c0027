#include "membership.h"

#include <thread>

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"
#include "dtrain/host/processes.h"
#include "rank_start.h"
#include "run_harness.h"

namespace dtrain::rank {
namespace {

const Contact kContact{"127.0.0.1", 4711, "0123456789abcdef"};

TEST(Rendezvous, TheFileIsForThisUserAloneAndGoneAtTheEnd) {
  const TemporaryFolder folder;
  const fs::path path = rendezvous_path(folder.path(), "job");
  {
    const RendezvousFile file(path, kContact);
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    const Contact found = await_contact(path, kHangs);
    EXPECT_EQ(found.address, kContact.address);
    EXPECT_EQ(found.port, kContact.port);
    EXPECT_EQ(found.secret, kContact.secret);
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Rendezvous, WhoComesFirstWaits) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "job";
  std::thread late([&] {
    std::this_thread::sleep_for(50ms);
    const RendezvousFile file(path, kContact);
    std::this_thread::sleep_for(500ms);
  });
  EXPECT_EQ(await_contact(path, kHangs).port, kContact.port);
  late.join();
}

TEST(Rendezvous, AtTheDeadlineTheFileIsNamed) {
  const TemporaryFolder folder;
  try {
    await_contact(folder.path() / "job", 20ms);
    FAIL();
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr((folder.path() / "job").string()));
  }
}

TEST(Rendezvous, AFileThatADeadJobLeftIsNotTaken) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "job";
  // This process lives, but it is not the one that wrote: that one had the same number, long ago.
  std::ofstream(path) << Json{{"address", "127.0.0.1"},
                              {"port", 1},
                              {"secret", "x"},
                              {"pid", ::getpid()},
                              {"started", host::start_ticks(::getpid()) - 1}};
  EXPECT_THROW(await_contact(path, 20ms), CommError);
  const RendezvousFile file(path, kContact);
  EXPECT_EQ(await_contact(path, kHangs).port, kContact.port);
}

TEST(Rendezvous, AnotherFileIsAnError) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "job";
  for (const std::string text : {"", "{", "[1]", R"({"pid": "x"})", R"({"address": "127.0.0.1"})"}) {
    std::ofstream(path) << text;
    EXPECT_THROW(await_contact(path, 1s), DataError) << text;
  }
}

TEST(Rendezvous, AJobsNameBecomesAFileName) {
  EXPECT_EQ(rendezvous_path("/f", "ompi-12.3/../x y"), "/f/ompi-12.3_.._x_y.rendezvous");
}

TEST(ProcessId, StartsAreInThePastAndTheSameTwice) {
  const SystemClock clock;
  EXPECT_LE(process_start(clock), clock.monotonic());
  EXPECT_GT(host::start_ticks(::getpid()), 0u);
  EXPECT_EQ(host::start_ticks(::getpid()), host::start_ticks(::getpid()));
  EXPECT_EQ(host::start_ticks(1 << 30), 0u);
}

}  // namespace
}  // namespace dtrain::rank
