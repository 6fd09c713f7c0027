#include "dtrain/run/checkpoint_folder.h"

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class CheckpointFolder : public testing::Test {
 protected:
  CheckpointFolder() { fs::create_directories(run_.path); }
  ~CheckpointFolder() override {
    fs::permissions(folder_ / "closed", fs::perms::owner_all, code_);
    fs::remove_all(folder_);
  }
  config::CheckpointStorage at(const fs::path& path) const {
    config::CheckpointStorage storage;
    storage.folder = path;
    return storage;
  }
  std::string refusal(const config::CheckpointStorage& storage) {
    try {
      check_checkpoint_storage(storage);
    } catch (const ConfigError& error) {
      return std::string(error.what()) + "\n" + error.remedy();
    }
    return "was accepted";
  }

  std::error_code code_;
  const fs::path folder_ = fs::temp_directory_path() / ("dtrain-storage-" + random_hex(8));
  const RunFolder run_{folder_ / "0001-net"};
};

TEST_F(CheckpointFolder, IsTheRunsOwnWhereNoStorageIsNamed) {
  EXPECT_EQ(make_checkpoint_folder(run_, {}), "");
  EXPECT_EQ(checkpoints::storage_of_run(run_.path), run_.path / "checkpoints");
  EXPECT_FALSE(fs::exists(run_.path / "checkpoints" / "storage.json"));
}

TEST_F(CheckpointFolder, OfRunsOfOneNameAreDifferentAndStay) {
  const fs::path storage = folder_ / "storage" / "team";
  const RunFolder other{folder_ / "elsewhere" / "0001-net"};
  fs::create_directories(other.path);
  const fs::path first = make_checkpoint_folder(run_, at(storage));
  const fs::path second = make_checkpoint_folder(other, at(storage));
  EXPECT_NE(first, second);
  for (const auto& [run, made] : {std::pair(run_, first), std::pair(other, second)}) {
    EXPECT_EQ(made.parent_path(), storage);
    EXPECT_THAT(made.filename().string(), testing::MatchesRegex("0001-net-[0-9a-f]+"));
    EXPECT_EQ(checkpoints::storage_of_run(run.path), made);
    EXPECT_EQ(read_json(made / "run.json").at("run"), run.path.string());
    EXPECT_TRUE(checkpoints::list(made).empty());
  }
  // Another storage does not take a run away from its checkpoints.
  EXPECT_EQ(make_checkpoint_folder(run_, at(folder_ / "new")), first);
  EXPECT_EQ(make_checkpoint_folder(run_, {}), first);
  EXPECT_FALSE(fs::exists(folder_ / "new"));
}

TEST_F(CheckpointFolder, ARunThatHasCheckpointsStaysWithThem) {
  fs::create_directories(run_.path / "checkpoints" / "step-5");
  EXPECT_EQ(make_checkpoint_folder(run_, at(folder_ / "storage")), "");
  EXPECT_EQ(checkpoints::storage_of_run(run_.path), run_.path / "checkpoints");
}

TEST_F(CheckpointFolder, ThatIsNotThereIsNoEmptyOne) {
  EXPECT_EQ(find_checkpoint_folder(run_), run_.path / "checkpoints") << "a run of its own folder need not have one";
  const fs::path made = make_checkpoint_folder(run_, at(folder_ / "disk"));
  EXPECT_EQ(find_checkpoint_folder(run_), made);
  EXPECT_EQ(run_of_checkpoint_folder(made), run_.path);
  fs::remove(made / "run.json");
  EXPECT_EQ(run_of_checkpoint_folder(made), "");
  EXPECT_THROW(find_checkpoint_folder(run_), ConfigError);
}

TEST_F(CheckpointFolder, AFolderForAllHostsIsNotMade) {
  config::CheckpointStorage storage = at(folder_ / "mount" / "a");
  storage.host_path = folder_ / "mount";
  EXPECT_THAT(refusal(storage), HasSubstr("host_path: there is no folder " + storage.host_path.string()));
  EXPECT_THROW(make_checkpoint_folder(run_, storage), ConfigError);
  EXPECT_FALSE(fs::exists(folder_ / "mount"));
  fs::create_directory(folder_ / "mount");
  EXPECT_EQ(make_checkpoint_folder(run_, storage).parent_path(), storage.folder);
}

TEST_F(CheckpointFolder, WhatCannotBeWrittenIsNamedWithTheUser) {
  write_file_atomic(folder_ / "file", "");
  EXPECT_THAT(refusal(at(folder_ / "file")), HasSubstr("cannot write into " + (folder_ / "file").string() + ": Not a"));
  EXPECT_THAT(refusal(at(folder_ / "file" / "below")), HasSubstr("Not a directory"));
  EXPECT_THROW(make_checkpoint_folder(run_, at("/proc/none")), ConfigError) << "root is told by the attempt alone";
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::create_directory(folder_ / "closed");
  fs::permissions(folder_ / "closed", fs::perms::owner_read);
  EXPECT_THAT(refusal(at(folder_ / "closed" / "a")), HasSubstr("(uid " + std::to_string(::geteuid()) + ")"));
}

}  // namespace
}  // namespace dtrain::run
