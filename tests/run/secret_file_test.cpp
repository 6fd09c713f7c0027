// The run's secret: in a file that its user alone can read, on every host, and nowhere else.
#include "membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "launch/job_ranks.h"
#include "plan/launch_plan.h"
#include "run_harness.h"

namespace dtrain::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const rank::LaunchSecrets kSecrets{.launch = "0123456789abcdef", .ranks = "fedcba9876543210"};

std::string refusal(const fs::path& path) {
  try {
    rank::read_secret_file(path);
    return "accepted";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

unsigned mode_of(const fs::path& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

TEST(SecretFile, IsReadByItsUserAloneAndGoesAtTheEnd) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "secret";
  std::ofstream(path) << "left by a launcher that was killed";
  {
    const SecretFile file(path, kSecrets);
    EXPECT_EQ(mode_of(path), 0600u);
    EXPECT_EQ(rank::read_secret_file(path).launch, kSecrets.launch);
    EXPECT_EQ(rank::read_secret_file(path).ranks, kSecrets.ranks);
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(SecretFile, ThatOthersCouldHaveWrittenIsRefused) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "secret";
  EXPECT_THAT(refusal(path), HasSubstr(path.string() + ", cannot be read: No such file"));
  const SecretFile file(path, kSecrets);
  fs::create_symlink(path, folder.path() / "link");
  EXPECT_THAT(refusal(folder.path() / "link"), HasSubstr("cannot be read"));
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  EXPECT_THAT(refusal(path), HasSubstr("open to others"));
  std::ofstream(path, std::ios::trunc) << "half";
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_THAT(refusal(path), HasSubstr("is incomplete"));
}

TEST(SecretFile, VariablesNameItAndDoNotHoldIt) {
  rank::LauncherContact contact{.address = "10.0.0.1", .port = 7, .secret_file = "/tmp/secret", .secrets = kSecrets};
  for (const auto& [name, value] : rank::launcher_variables(contact)) {
    EXPECT_THAT(value, Not(HasSubstr(kSecrets.launch))) << name;
    EXPECT_THAT(value, Not(HasSubstr(kSecrets.ranks))) << name;
  }
  EXPECT_EQ(rank::read_rank_environment(rank::launcher_variables(contact)).launcher->secret_file, "/tmp/secret");
  contact.secret_file.clear();  // where it could not be had
  EXPECT_EQ(rank::read_rank_environment(rank::launcher_variables(contact)).launcher->secrets.ranks, kSecrets.ranks);
}

std::string refused_run_secret(const fs::path& path) {
  try {
    rank::read_run_secret(path);
    return "accepted";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(RunSecret, IsTheTextOfTheUsersFile) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "secret";
  EXPECT_EQ(rank::read_run_secret({}), "") << "none is given";
  EXPECT_THAT(refused_run_secret(path), HasSubstr(path.string() + ", cannot be read: No such file"));
  std::ofstream(path) << " 0123456789abcdef\n";
  EXPECT_THAT(refused_run_secret(path), HasSubstr("open to others"));
  ASSERT_EQ(::chmod(path.c_str(), 0400), 0);
  EXPECT_EQ(rank::read_run_secret(path), "0123456789abcdef");
  fs::create_symlink(path, folder.path() / "link");
  EXPECT_EQ(rank::read_run_secret(folder.path() / "link"), "0123456789abcdef") << "as Kubernetes mounts it";
  const bool root = ::geteuid() == 0;
  ASSERT_EQ(::chmod(path.c_str(), 0440), 0);
  EXPECT_EQ(refused_run_secret(path) == "accepted", root) << "the group of a file of root's alone may read it";
  ASSERT_EQ(::chmod(path.c_str(), 0460), 0);
  EXPECT_THAT(refused_run_secret(path), HasSubstr("open to others"));
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  std::ofstream(path, std::ios::trunc) << "short\n";
  EXPECT_THAT(refused_run_secret(path), HasSubstr("has 5 bytes; at least 16 are needed"));
  std::ofstream(path, std::ios::trunc) << std::string(5000, 'x');
  EXPECT_THAT(refused_run_secret(path), HasSubstr("more than 4096 bytes"));
  EXPECT_THAT(refused_run_secret(folder.path()), HasSubstr("is no plain file"));
}

TEST(RunSecret, IsOfAllRanksOrOfNone) {
  EXPECT_EQ(rank::secret_to_join("of the file", ""), "of the file");
  EXPECT_EQ(rank::secret_to_join("", "told by rank 0"), "told by rank 0");
  EXPECT_THROW(rank::secret_to_join("of the file", "told by whoever serves the store"), ConfigError);
  EXPECT_THROW(rank::secret_to_join("", ""), ConfigError);
  EXPECT_EQ(rank::read_rank_environment({{"DTRAIN_RUN_SECRET_FILE", "/run/secret"}}).run_secret_file, "/run/secret");
}

// A stand-in for ssh, which keeps the command lines that it was given; its hosts share this one's folders.
TEST(SecretFile, ReachesOtherHostsOverTheShellsInput) {
  const TemporaryFolder folder;
  const fs::path shell = folder.path() / "shell";
  std::ofstream(shell) << "#!/bin/sh\necho \"$*\" >>" << (folder.path() / "lines").string()
                       << "\n[ $1 != nodec ] || { echo no route >&2; exit 255; }\nexec sh -c \"$2\"\n";
  fs::permissions(shell, fs::perms::owner_all);
  PlacedLaunch plan;
  plan.host = "nodea";
  for (const char* host : {"nodea", "nodeb", "nodeb"}) plan.ranks.push_back({.host = host});
  const RemoteHosts hosts({shell.string()});
  const fs::path path = folder.path() / "it's the secret";
  EXPECT_THAT(hosts.hand_out(plan, path, to_text(kSecrets)), IsEmpty());
  EXPECT_EQ(mode_of(path), 0600u);
  EXPECT_EQ(rank::read_secret_file(path).ranks, kSecrets.ranks);
  EXPECT_THAT(hosts.hand_out(plan, path, to_text(kSecrets)), IsEmpty()) << "where the hosts share that folder";
  EXPECT_THAT(slurp(folder.path() / "lines"), Not(HasSubstr(kSecrets.launch)));
  EXPECT_EQ(count_of(slurp(folder.path() / "lines"), "nodeb "), 2);
  plan.ranks.push_back({.host = "nodec"});
  EXPECT_THAT(hosts.hand_out(plan, path, to_text(kSecrets)), ElementsAre("host nodec: no route"));
  hosts.take_back(plan, path);
  EXPECT_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace dtrain::launcher
