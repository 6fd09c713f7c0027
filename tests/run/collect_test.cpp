// Collecting what another host has written: over a remote shell that leads to another folder of this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "launch/job_ranks.h"
#include "run_harness.h"

namespace dtrain::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The launcher's folder of the run, and the same on the other host: under the same name there, under another one here.
class Collect : public ::testing::Test {
 protected:
  Collect() {
    fs::create_directories(run().logs());
    put(run().events(), "{\"event\":\"run_started\"}\n");
    put(run().plan(), "{\"name\":\"job\"}\n");
    put(there(".dtrain-host-folder"), "token");
    put(there("events.jsonl"), "{\"event\":\"rank_started\"}\n");
    put(there("plan.json"), "{\"name\":\"job\"}\n");
    put(there("profile/rank-0001.jsonl"), "{}\n");
    // In place of ssh: its first word is the host, the second what the shell there is to do.
    put(folder_.path() / "shell", "#!/bin/sh\nexec sh -c \"$(printf %s \"$2\" | sed 's#" + run().path.string() + "#" +
                                      there("").string() + "#g')\"\n");
    fs::permissions(folder_.path() / "shell", fs::perms::owner_all);
  }
  rank::RunFolder run() const { return {folder_.path() / "run"}; }
  fs::path there(const std::string& name) const { return folder_.path() / "there" / name; }
  static void put(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::string collect() const { return RemoteHosts({folder_.path() / "shell"}).collect("nodeb", {"nodeb"}, run()); }
  // It fails, with the file that is the reason, and says on which host everything still lies, and where.
  void expect_failure(const std::string& reason) const {
    try {
      collect();
      ADD_FAILURE() << "collected";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(reason));
      EXPECT_THAT(error.what(), HasSubstr("host nodeb"));
      EXPECT_THAT(error.remedy(), HasSubstr("is still on host nodeb, in " + run().path.string()));
    }
    EXPECT_TRUE(fs::exists(there("profile/rank-0001.jsonl"))) << "what could not be collected stays there";
    EXPECT_THAT(from_hosts(), IsEmpty()) << "nothing half done is left here";
  }
  std::vector<std::string> from_hosts() const {
    std::vector<std::string> names;
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(run().launch(), code)) names.push_back(entry.path().filename());
    return names;
  }

  TemporaryFolder folder_;
};

TEST_F(Collect, BringsEveryFileAndLeavesNothingThere) {
  EXPECT_EQ(collect(), "");
  EXPECT_EQ(slurp(run().profile() / "rank-0001.jsonl"), "{}\n");
  EXPECT_EQ(slurp(run().events()), "{\"event\":\"run_started\"}\n{\"event\":\"rank_started\"}\n");
  EXPECT_FALSE(fs::exists(there("")));
  EXPECT_THAT(from_hosts(), IsEmpty());
}

TEST_F(Collect, LinksAreLeftOutAndNamed) {
  put(folder_.path() / "secret", "of the launching host\n");
  fs::create_symlink("loop", there("logs-loop"));
  fs::create_symlink("loop", there("loop"));
  fs::create_symlink(folder_.path() / "secret", there("profile/agent-b.jsonl"));
  fs::create_directory_symlink(folder_.path(), there("folder"));
  const std::string missing = collect();
  for (const char* name : {"loop", "profile/agent-b.jsonl", "folder"}) {
    EXPECT_THAT(missing, HasSubstr((run().path / name).string()));
    EXPECT_FALSE(fs::exists(fs::symlink_status(run().path / name))) << name;
  }
  EXPECT_THAT(missing, HasSubstr("host nodeb"));
  EXPECT_EQ(slurp(run().profile() / "rank-0001.jsonl"), "{}\n");
}

TEST_F(Collect, ALinkInThePlaceOfTheEventsIsNotFollowed) {
  put(folder_.path() / "secret", "{\"event\":\"of the launching host\"}\n");
  fs::remove(there("events.jsonl"));
  fs::create_symlink(folder_.path() / "secret", there("events.jsonl"));
  EXPECT_THAT(collect(), HasSubstr("events.jsonl"));
  EXPECT_EQ(slurp(run().events()), "{\"event\":\"run_started\"}\n");
}

TEST_F(Collect, FilesAreTheLaunchingUsersWithoutSpecialModes) {
  const fs::path file = there("profile/tool");
  put(file, "#!/bin/sh\n");
  ASSERT_EQ(::chmod(file.c_str(), 06777), 0);
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::chown(file.c_str(), 65534, 65534), 0);
    ASSERT_EQ(::chmod(file.c_str(), 06777), 0);
  }
  EXPECT_EQ(collect(), "");
  struct stat info {};
  ASSERT_EQ(::stat((run().profile() / "tool").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07000, 0u);
  EXPECT_EQ(info.st_mode & 0022, 0u) << "the umask counts";
  EXPECT_EQ(info.st_uid, ::geteuid());
}

TEST_F(Collect, NamesThatLeadOutOfTheFolderAreRefused) {
  put(folder_.path() / "evil/x", "from there\n");
  const std::string archive = (folder_.path() / "evil.tar").string();
  ASSERT_EQ(std::system(("tar -P -C " + (folder_.path() / "evil").string() +
                         " --transform 's#^x#../../../outside#' -cf " + archive + " x")
                            .c_str()),
            0);
  put(folder_.path() / "shell", "#!/bin/sh\ncase \"$2\" in *tar*) cat " + archive + ";; esac\n");
  expect_failure("'..'");
  EXPECT_FALSE(fs::exists(run().path / "outside"));
  EXPECT_FALSE(fs::exists(folder_.path() / "outside"));
}

TEST_F(Collect, AFullDiskHereIsAnErrorThatSaysWhereTheRecordsAre) {
  put(there("profile/rank-0002.jsonl"), std::string(2 << 20, '\n'));
  fs::create_directories(run().profile());
  if (::mount("dtrain-test", run().profile().c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "only root can mount a tmpfs";
  }
  expect_failure("cannot write " + (run().profile() / "rank-0002.jsonl").string() + ": No space left on device");
  ::umount2(run().profile().c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace dtrain::launcher
