// The process dtrain-saver for real: what it writes, and how it ends.
#include <csignal>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint_harness.h"
#include "dtrain/base/error.h"

namespace dtrain::checkpoints {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t kPiece = kPieceBytes;

void expect_contents(const std::filesystem::path& checkpoint, const TestSnapshot& snapshot) {
  for (std::size_t i = 0; i < snapshot.images().size(); ++i) {
    EXPECT_TRUE(read_file(checkpoint / snapshot.images()[i].name) == snapshot.contents()[i])
        << snapshot.images()[i].name << " of " << checkpoint;
  }
  EXPECT_THAT(verify(checkpoint), IsEmpty());
}

class SaverOn : public testing::TestWithParam<const char*> {
 protected:
  SaverOn() : root_(std::filesystem::path(GetParam()) / ("dtrain-saver-" + random_hex(8))) {}
  ~SaverOn() override { std::filesystem::remove_all(root_); }
  std::filesystem::path root_;
};

TEST_P(SaverOn, WritesFilesOfEverySize) {
  TestSnapshot snapshot({{"empty.safetensors", 0},
                         {"one.safetensors", 1},
                         {"below-block.safetensors", 4095},
                         {"block.safetensors", 4096},
                         {"above-block.safetensors", 4097},
                         {"below-piece.safetensors", kPiece - 1},
                         {"piece.safetensors", kPiece},
                         {"above-piece.safetensors", kPiece + 1},
                         {"pieces.safetensors", 3 * kPiece + 5000}},
                        2);
  Saver saver(options_for(root_ / "deep" / "storage"), snapshot.memory());
  for (std::uint64_t number = 1; number <= 3; ++number) {
    const SaveResult result =
        save_and_wait(saver, snapshot, number, about_step(static_cast<std::int64_t>(10 * number)), number);
    ASSERT_EQ(result.error, "");
    EXPECT_EQ(result.path, root_ / "deep" / "storage" / ("step-" + std::to_string(10 * number)));
    EXPECT_EQ(snapshot.memory().freed(), number);
    expect_contents(result.path, snapshot);
    const Entry entry = look_at(result.path);
    EXPECT_EQ(entry.bytes, result.bytes);
    EXPECT_EQ(entry.damage, "");
    EXPECT_EQ(read_json(result.path / kStateFile), Json({{"batch", 10 * number}}));
  }
  EXPECT_THAT(names_in(root_ / "deep" / "storage"), ElementsAre("step-10", "step-20", "step-30"));
}

INSTANTIATE_TEST_SUITE_P(FileSystems, SaverOn, testing::Values("/tmp", "/dev/shm"),
                         [](const auto& info) { return std::string(info.param) == "/tmp" ? "Tmp" : "SharedMemory"; });

class SaverTest : public testing::Test {
 protected:
  std::filesystem::path storage() const { return folder_ / "storage"; }
  TemporaryFolder folder_;
};

TEST_F(SaverTest, KeepsNewestAndBest) {
  TestSnapshot snapshot({{"model.safetensors", 10'000}});
  Saver saver(options_for(storage(), {2, 1}), snapshot.memory());
  const std::vector<double> losses{0.5, 0.3, 0.4, 0.6, 0.7};
  std::vector<std::string> deleted;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    About about = about_step(static_cast<std::int64_t>(i) + 1);
    about.metric = "loss";
    about.metric_value = losses[i];
    const SaveResult result = save_and_wait(saver, snapshot, i + 1, about, i);
    ASSERT_EQ(result.error, "");
    deleted.insert(deleted.end(), result.deleted.begin(), result.deleted.end());
  }
  EXPECT_THAT(names_in(storage()), ElementsAre("step-2", "step-4", "step-5"));
  EXPECT_THAT(deleted, ElementsAre("step-1", "step-3"));
}

TEST_F(SaverTest, StateOfAnyLength) {
  TestSnapshot snapshot({{"model.safetensors", 100}});
  Saver saver(options_for(storage()), snapshot.memory());
  snapshot.fill(1);
  snapshot.mark_copied(1);
  SaveRequest request = request_for(snapshot, 1, about_step(7));
  request.state = Json::object();
  for (int i = 0; i < 20'000; ++i) request.state["text"].push_back("a text of the training state " + std::to_string(i));
  saver.save(request);
  EXPECT_TRUE(saver.busy());
  EXPECT_THROW(saver.save(request), Error);
  const auto result = saver.wait(kPatience);
  ASSERT_TRUE(result);
  ASSERT_EQ(result->error, "");
  EXPECT_FALSE(saver.busy());
  EXPECT_TRUE(read_json(result->path / kStateFile) == request.state);
  EXPECT_FALSE(saver.poll());
}

TEST_F(SaverTest, FreesMemoryAndWaitsForEveryRank) {
  TestSnapshot snapshot({{"model.safetensors", 100}}, 3);
  Saver saver(options_for(storage()), snapshot.memory());
  snapshot.fill(1);
  saver.save(request_for(snapshot, 1, about_step(1)));
  snapshot.memory().mark_copied(0, 1);
  snapshot.memory().mark_copied(2, 1);
  EXPECT_FALSE(saver.wait(std::chrono::milliseconds(50)));
  EXPECT_EQ(snapshot.memory().freed(), 0u);
  snapshot.memory().mark_copied(1, 1);
  const auto result = saver.wait(kPatience);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->error, "");
  EXPECT_EQ(snapshot.memory().freed(), 1u);
}

// What its rank handed over whole is written although the rank is gone at once, and although it was told to stop.
TEST_F(SaverTest, OutlivesItsRank) {
  const pid_t rank = ::fork();
  if (rank == 0) {
    TestSnapshot snapshot({{"model.safetensors", 5 * kPiece + 77}});
    Saver saver(options_for(storage()), snapshot.memory());
    ::kill(saver.pid(), SIGTERM);
    ::kill(saver.pid(), SIGINT);
    snapshot.fill(3);
    snapshot.mark_copied(1);
    saver.save(request_for(snapshot, 1, about_step(40)));
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_EQ(::waitpid(rank, nullptr, 0), rank);
  ASSERT_TRUE(wait_for_savers(storage(), kPatience));
  TestSnapshot same({{"model.safetensors", 5 * kPiece + 77}});
  same.fill(3);
  expect_contents(storage() / "step-40", same);
}

TEST_F(SaverTest, AbandonsWhatWasNotCopied) {
  {
    TestSnapshot snapshot({{"model.safetensors", 100}}, 2);
    Saver saver(options_for(storage()), snapshot.memory());
    save_and_wait(saver, snapshot, 1, about_step(1), 1);
    snapshot.memory().mark_copied(0, 2);
    saver.save(request_for(snapshot, 2, about_step(2)));
  }
  ASSERT_TRUE(wait_for_savers(storage(), kPatience));
  EXPECT_THAT(names_in(storage()), ElementsAre("step-1"));
}

// A stopped process stands for one that waits for a disk which does not answer.
TEST_F(SaverTest, IsLeftToItselfWhereItDoesNotGetOn) {
  TestSnapshot snapshot({{"model.safetensors", 5 * kPiece + 77}});
  pid_t pid = 0;
  {
    Saver saver(options_for(storage()), snapshot.memory());
    pid = saver.pid();
    ASSERT_EQ(::kill(pid, SIGSTOP), 0);
    snapshot.fill(3);
    snapshot.mark_copied(1);
    saver.save(request_for(snapshot, 1, about_step(40)));
    EXPECT_EQ(saver.end(std::chrono::milliseconds(20)),
              "the process dtrain-saver (" + std::to_string(pid) +
                  ") has not ended within 20.0 ms, while it writes the checkpoint of batch 40 in " +
                  storage().string() + "; it goes on by itself: does the file system answer, and is its disk full?");
  }
  EXPECT_FALSE(wait_for_savers(storage(), std::chrono::milliseconds(0)));
  ASSERT_EQ(::kill(pid, SIGCONT), 0);
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
  ASSERT_TRUE(wait_for_savers(storage(), kPatience));
  expect_contents(storage() / "step-40", snapshot);
}

TEST_F(SaverTest, EndsWithoutAMessage) {
  TestSnapshot snapshot({{"model.safetensors", 5 * kPiece}});
  Saver saver(options_for(storage()), snapshot.memory());
  snapshot.fill(3);
  snapshot.mark_copied(1);
  saver.save(request_for(snapshot, 1, about_step(40)));
  EXPECT_EQ(saver.end(kPatience), "");
  expect_contents(storage() / "step-40", snapshot);
}

TEST_F(SaverTest, KilledSaverIsAnErrorAndTheNextSaveWorks) {
  TestSnapshot snapshot({{"model.safetensors", 100}}, 2);
  Saver saver(options_for(storage()), snapshot.memory());
  saver.save(request_for(snapshot, 1, about_step(1)));
  ::kill(saver.pid(), SIGKILL);
  const auto result = saver.wait(kPatience);
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->path.empty());
  EXPECT_THAT(result->error, HasSubstr("killed by signal 9"));
  EXPECT_EQ(snapshot.memory().freed(), 1u);
  const SaveResult second = save_and_wait(saver, snapshot, 2, about_step(2), 2);
  EXPECT_EQ(second.error, "");
  EXPECT_THAT(names_in(storage()), ElementsAre("step-2"));
}

TEST_F(SaverTest, StorageThatVanishesIsAnErrorUntilItIsBack) {
  TestSnapshot snapshot({{"model.safetensors", 100}});
  Saver saver(options_for(storage()), snapshot.memory());
  EXPECT_EQ(save_and_wait(saver, snapshot, 1, about_step(1), 1).error, "");
  std::filesystem::remove_all(storage());
  const SaveResult lost = save_and_wait(saver, snapshot, 2, about_step(2), 2);
  EXPECT_THAT(lost.error, HasSubstr(storage().string()));
  EXPECT_FALSE(std::filesystem::exists(storage()));
  std::filesystem::create_directory(storage());
  EXPECT_EQ(save_and_wait(saver, snapshot, 3, about_step(3), 3).error, "");
  EXPECT_THAT(names_in(storage()), ElementsAre("step-3"));
}

TEST_F(SaverTest, SecondSaverOfOneStorageIsRefused) {
  TestSnapshot snapshot({{"model.safetensors", 100}});
  std::optional<Saver> first(std::in_place, options_for(storage()), snapshot.memory());
  ASSERT_EQ(save_and_wait(*first, snapshot, 1, about_step(1), 1).error, "");
  EXPECT_FALSE(wait_for_savers(storage(), std::chrono::milliseconds(0)));

  TestSnapshot other({{"model.safetensors", 100}});
  Saver second(options_for(storage()), other.memory());
  other.fill(5);
  other.mark_copied(1);
  SaveRequest request = request_for(other, 1, about_step(2));
  request.patience_s = 0.05;
  second.save(request);
  const auto refused = second.wait(kPatience);
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->error, HasSubstr("another process writes checkpoints into " + storage().string()));

  first.reset();
  EXPECT_EQ(save_and_wait(second, other, 2, about_step(2), 6).error, "");
  EXPECT_THAT(names_in(storage()), ElementsAre("step-1", "step-2"));
}

TEST_F(SaverTest, SameCheckpointStaysAndAnotherReplacesIt) {
  TestSnapshot snapshot({{"model.safetensors", 100'000}});
  Saver saver(options_for(storage()), snapshot.memory());
  ASSERT_EQ(save_and_wait(saver, snapshot, 1, about_step(5), 1).error, "");
  const auto inode = [&] {
    struct stat info {};
    EXPECT_EQ(::stat((storage() / "step-5").c_str(), &info), 0);
    return info.st_ino;
  };
  const auto before = inode();
  ASSERT_EQ(save_and_wait(saver, snapshot, 2, about_step(5), 1).error, "");
  EXPECT_EQ(inode(), before);
  ASSERT_EQ(save_and_wait(saver, snapshot, 3, about_step(5), 2).error, "");
  EXPECT_NE(inode(), before);
  expect_contents(storage() / "step-5", snapshot);
  EXPECT_THAT(names_in(storage()), ElementsAre("step-5"));
}

TEST_F(SaverTest, RemovesWhatDeadSaversLeft) {
  for (const char* name : {".partial-step-3", ".deleted-step-1"}) {
    std::filesystem::create_directories(storage() / name / "sub");
    write_file_atomic(storage() / name / "model.safetensors", "left over");
  }
  std::filesystem::create_directories(storage() / "step-text");
  TestSnapshot snapshot({{"model.safetensors", 100}});
  Saver saver(options_for(storage()), snapshot.memory());
  ASSERT_EQ(save_and_wait(saver, snapshot, 1, about_step(9), 1).error, "");
  EXPECT_THAT(names_in(storage()), ElementsAre("step-9", "step-text"));
}

// A saver was killed while it replaced step 5 on a file system that cannot exchange folders.
TEST_F(SaverTest, PutsAReplacedCheckpointBack) {
  write_checkpoint(storage(), about_step(5), {{"model.safetensors", "content"}});
  std::filesystem::rename(storage() / "step-5", storage() / ".replaced-step-5");
  TestSnapshot snapshot({{"model.safetensors", 4096}});
  Saver saver(options_for(storage()), snapshot.memory());
  SaveRequest request = request_for(snapshot, 1, about_step(6));
  request.files[0].bytes = 4097;  // this save fails
  snapshot.mark_copied(1);
  saver.save(request);
  ASSERT_TRUE(saver.wait(kPatience));
  const Newest newest = find_newest(storage());
  ASSERT_TRUE(newest.entry);
  EXPECT_EQ(newest.entry->path, storage() / "step-5");
  EXPECT_EQ(save_and_wait(saver, snapshot, 2, about_step(6), 2).error, "");
  EXPECT_THAT(names_in(storage()), ElementsAre("step-5", "step-6"));
}

TEST_F(SaverTest, StorageThatCannotBeMadeIsRefusedAtTheStart) {
  write_file_atomic(folder_ / "file", "no folder");
  TestSnapshot snapshot({{"model.safetensors", 100}});
  EXPECT_THROW(Saver(options_for(folder_ / "file" / "storage"), snapshot.memory()), SystemError);
}

TEST_F(SaverTest, FileOutsideTheSnapshotIsAnError) {
  TestSnapshot snapshot({{"model.safetensors", 4096}});
  Saver saver(options_for(storage()), snapshot.memory());
  SaveRequest request = request_for(snapshot, 1, about_step(1));
  request.files[0].bytes = 4097;
  snapshot.mark_copied(1);
  saver.save(request);
  const auto result = saver.wait(kPatience);
  ASSERT_TRUE(result);
  EXPECT_THAT(result->error, HasSubstr("model.safetensors is to be made of 4097 bytes"));
  EXPECT_THAT(names_in(storage()), IsEmpty());
}

}  // namespace
}  // namespace dtrain::checkpoints
