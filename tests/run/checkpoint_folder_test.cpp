#include "dtrain/rank/checkpoint_folder.h"

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::rank {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class CheckpointFolder : public testing::Test {
 protected:
  CheckpointFolder() { fs::create_directories(run_.path); }
  ~CheckpointFolder() override { fs::permissions(folder_ / "closed", fs::perms::owner_all, code_); }
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
  const TemporaryFolder temporary_;
  const fs::path& folder_ = temporary_.path();
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

class SharedCheckpoints : public CheckpointFolder {
 protected:
  // A run that has saved at batch 5, in a folder of checkpoint_storage.
  SharedCheckpoints() : made_(make_checkpoint_folder(run_, at(folder_ / "disk"))) {
    write_file_atomic(run_.plan(), "{}");
    saved(run_, 5);
  }
  static void saved(const RunFolder& run, int batch) {
    const fs::path step = checkpoints::storage_of_run(run.path) / ("step-" + std::to_string(batch));
    fs::create_directories(step);
    write_file_atomic(step / "state.json", "state of " + run.path.filename().string());
    LineAppender(run.events()).append(to_line({{"event", "checkpoint_saved"}, {"step", batch}}));
  }
  RunFolder copy(const std::string& name) const {
    const RunFolder copied{folder_ / name};
    fs::copy(run_.path, copied.path, fs::copy_options::recursive);
    return copied;
  }
  static std::vector<std::int64_t> steps_in(const fs::path& storage) {
    std::vector<std::int64_t> steps;
    for (const checkpoints::Entry& entry : checkpoints::list(storage)) steps.push_back(entry.about.step);
    return steps;
  }
  static fs::path storage_of(const RunFolder& run) { return checkpoints::storage_of_run(run.path); }

  const fs::path made_;
};

TEST_F(SharedCheckpoints, AMovedRunTakesThemOver) {
  EXPECT_EQ(claim_checkpoint_folder(run_), "");
  const RunFolder moved{folder_ / "moved"};
  fs::rename(run_.path, moved.path);
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(other_owner_of_checkpoints(moved), "");
    EXPECT_EQ(claim_checkpoint_folder(moved), "");
    EXPECT_EQ(storage_of(moved), made_);
    EXPECT_EQ(run_of_checkpoint_folder(made_), moved.path);
  }
}

TEST_F(SharedCheckpoints, ACopyGetsItsOwn) {
  const RunFolder copied = copy("copy");
  saved(run_, 9);
  EXPECT_EQ(other_owner_of_checkpoints(copied), run_.path);
  EXPECT_THAT(claim_checkpoint_folder(copied),
              testing::AllOf(HasSubstr("belongs to the run " + run_.path.string()), HasSubstr("up to batch 5")));
  EXPECT_EQ(storage_of(copied).parent_path(), made_.parent_path());
  EXPECT_THAT(steps_in(storage_of(copied)), testing::ElementsAre(5)) << "9 is not of what it has done";
  EXPECT_EQ(read_file(storage_of(copied) / "step-5" / "state.json"), "state of 0001-net");
  EXPECT_EQ(claim_checkpoint_folder(copied), "") << "once";
  EXPECT_EQ(other_owner_of_checkpoints(copied), "");
  checkpoints::remove_checkpoints({storage_of(copied) / "step-5"});
  EXPECT_EQ(claim_checkpoint_folder(run_), "");
  EXPECT_EQ(storage_of(run_), made_);
  EXPECT_THAT(steps_in(made_), testing::ElementsAre(5, 9));
}

// As when it was on a disk that was not mounted: the copy looks like a run that was moved.
TEST_F(SharedCheckpoints, ARunWhoseCopyHasTakenThemOverIsTheCopyThen) {
  const RunFolder copied = copy("copy"), away{folder_ / "away"};
  fs::rename(run_.path, away.path);
  EXPECT_EQ(claim_checkpoint_folder(copied), "");
  EXPECT_EQ(storage_of(copied), made_);
  fs::rename(away.path, run_.path);
  EXPECT_THAT(claim_checkpoint_folder(run_), HasSubstr("belongs to the run " + copied.path.string()));
  EXPECT_NE(storage_of(run_), made_);
  EXPECT_THAT(steps_in(storage_of(run_)), testing::ElementsAre(5));
}

TEST_F(SharedCheckpoints, ACopyWhoseCheckpointsAreGoneIsRefused) {
  const RunFolder copied = copy("copy");
  saved(run_, 9);
  checkpoints::remove_checkpoints({made_ / "step-5"});
  try {
    claim_checkpoint_folder(copied);
    ADD_FAILURE() << "it was accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("none is left there up to batch 5"));
    EXPECT_THAT(error.remedy(), HasSubstr("initial_weights: " + (made_ / "step-9").string()));
  }
  EXPECT_EQ(storage_of(copied), made_) << "as it was";
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
}  // namespace dtrain::rank
