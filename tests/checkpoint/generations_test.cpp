// States in memory: which of them count, what stays when a process dies between any two steps of their completion, and
// whose folders are removed.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_harness.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/checkpoint/generation_slots.h"
#include "dtrain/checkpoint/memory_folder.h"
#include "dtrain/host/processes.h"

namespace dtrain::checkpoints {
namespace {

namespace fs = std::filesystem;

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t kModel = 10'000, kOptimizer = 5'000;

std::vector<std::string> all_names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

GenerationFiles files_of_step(std::int64_t step) {
  GenerationFiles files;
  files.about.step = step;
  files.about.reason = "memory";
  files.state = "{}";
  files.files = {{kModelFile, kModel, {}}, {kOptimizerFile, kOptimizer, {}}, {rank_file(0), 3, {}}};
  return files;
}

// The slots of one process, as an attempt uses them.
class Slots {
 public:
  explicit Slots(const fs::path& folder, std::size_t model = kModel)
      : folder_(folder), names_(reserve_slots(folder, model, kOptimizer)) {
    for (const std::string& name : names_.slots) slots_.emplace_back(folder, name, model, kOptimizer);
  }
  GenerationSlot& next() { return slots_[static_cast<std::size_t>(names_.turn)]; }
  void write(char fill) {
    std::memset(next().data(), fill, kModel);
    std::memset(next().data() + 12'288, fill, kOptimizer);
    next().write_file(rank_file(0), std::string(3, fill));
  }
  void complete(std::int64_t step) { complete_generation(folder_, names_, files_of_step(step)); }
  const SlotNames& names() const { return names_; }

 private:
  const fs::path folder_;
  SlotNames names_;
  std::vector<GenerationSlot> slots_;
};

TEST(Generations, TheNewestWholeOneStaysAndTheOtherIsWritten) {
  const TemporaryFolder folder;
  Slots slots(folder.path());
  EXPECT_THAT(list(folder.path()), IsEmpty());
  for (int step = 1; step <= 4; ++step) {
    slots.write(static_cast<char>('a' + step));
    slots.complete(step);
    const auto states = list(folder.path());
    ASSERT_EQ(states.size(), 1u);
    EXPECT_EQ(states[0].about.step, step);
    EXPECT_EQ(states[0].damage, "");
    EXPECT_THAT(verify(states[0].path), IsEmpty());
    EXPECT_EQ(read_file(states[0].path / kModelFile), std::string(kModel, static_cast<char>('a' + step)));
    EXPECT_EQ(read_file(states[0].path / kOptimizerFile), std::string(kOptimizer, static_cast<char>('a' + step)));
    EXPECT_EQ(read_file(states[0].path / rank_file(0)), std::string(3, static_cast<char>('a' + step)));
  }
}

TEST(Generations, WhatIsBeingWrittenDoesNotCountAndDoesNotHarm) {
  const TemporaryFolder folder;
  {
    Slots slots(folder.path());
    slots.write('a');
    slots.complete(7);
    slots.write('b');  // the process dies here
  }
  ASSERT_EQ(list(folder.path()).size(), 1u);
  Slots again(folder.path());
  EXPECT_EQ(again.names().newest, 7);
  again.write('c');
  EXPECT_EQ(read_file(folder / "step-7" / kModelFile), std::string(kModel, 'a'));
  again.complete(8);
  const auto states = list(folder.path());
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(read_file(states[0].path / kModelFile), std::string(kModel, 'c'));
  EXPECT_EQ(all_names_in(folder.path()).size(), 2u);  // no memory is lost
}

// Two names: the process died after the newer state had its name, before the older one had lost its own.
TEST(Generations, TheFurtherOfTwoWholeStatesIsTaken) {
  const TemporaryFolder folder;
  {
    Slots slots(folder.path());
    slots.write('a');
    slots.complete(3);
  }
  fs::copy(folder / "step-3", folder / "step-2");
  std::string manifest = to_text({files_of_step(2).about, {{kModelFile, kModel, {}}}, false});
  std::ofstream(folder / "step-2" / kManifestFile) << manifest;
  const Slots again(folder.path());
  EXPECT_EQ(again.names().newest, 3);
  EXPECT_EQ(list(folder.path()).size(), 1u);
}

TEST(Generations, AStateOfAnotherSizeStaysUntilThereIsANewerOne) {
  const TemporaryFolder folder;
  {
    Slots slots(folder.path());
    slots.write('a');
    slots.complete(3);
  }
  Slots larger(folder.path(), kModel + 1);
  EXPECT_EQ(larger.names().newest, -1);
  EXPECT_EQ(list(folder.path()).size(), 1u);
  larger.write('b');
  GenerationFiles files = files_of_step(4);
  files.files[0].bytes = kModel + 1;
  SlotNames names = larger.names();
  complete_generation(folder.path(), names, files);
  const auto states = list(folder.path());
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0].about.step, 4);
}

TEST(Generations, ASurvivorCompletesAStateBesideWritersOfTheSlot) {
  const TemporaryFolder folder;
  Slots slots(folder.path());
  slots.write('a');
  slots.complete(5);
  slots.write('b');
  complete_by_survivor(folder.path(), slots.next(), files_of_step(9), {{rank_file(0), "own"}});
  slots.next().write_file(rank_file(0), "of a state that another rank still takes");
  auto states = list(folder.path());
  ASSERT_EQ(states.size(), 2u);
  EXPECT_EQ(states[1].about.step, 9);
  EXPECT_EQ(states[1].damage, "");
  EXPECT_EQ(read_file(states[1].path / rank_file(0)), "own");
  EXPECT_EQ(read_file(states[1].path / kOptimizerFile), std::string(kOptimizer, 'b'));
  const Slots again(folder.path());
  EXPECT_EQ(again.names().newest, 9);
  EXPECT_EQ(list(folder.path()).size(), 1u);
}

TEST(Generations, TheNewestBecomesACheckpointWithChecksums) {
  const TemporaryFolder run, storage;
  const MemoryFolder memory(run.path());
  EXPECT_FALSE(save_newest_in_memory(run.path(), storage.path()));
  Slots slots(memory.path());
  slots.write('a');
  slots.complete(5);
  const auto saved = save_newest_in_memory(run.path(), storage.path());
  ASSERT_EQ(saved, storage / "step-5");
  EXPECT_TRUE(read_manifest(*saved).has_checksums);
  EXPECT_THAT(verify(*saved), IsEmpty());
  EXPECT_EQ(read_file(*saved / kModelFile), std::string(kModel, 'a'));
  EXPECT_FALSE(save_newest_in_memory(run.path(), storage.path()));  // it is no further
  std::ofstream(*saved / kOptimizerFile, std::ios::in | std::ios::out) << "b";
  EXPECT_EQ(verify(*saved).size(), 1u);
}

TEST(Generations, OnlyOneCompletesAtATime) {
  const TemporaryFolder folder;
  GenerationBoard::create(folder.path(), {0, 1, 2}, 3, 100);
  const GenerationBoard board(folder.path());
  EXPECT_TRUE(board.begin_completion());
  EXPECT_FALSE(board.begin_completion());
  board.end_completion(/*by_survivor=*/false);
  EXPECT_TRUE(board.begin_completion());
  board.end_completion(/*by_survivor=*/true);
  EXPECT_FALSE(board.begin_completion());
}

TEST(Generations, TheLastTwoPublicationsStay) {
  const TemporaryFolder folder;
  GenerationBoard::create(folder.path(), {0, 1}, 2, 100);
  const GenerationBoard board(folder.path());
  const auto publish = [&](int rank, std::int64_t batch, const std::string& text) {
    const auto to = board.begin_publication(rank);
    std::memcpy(to.data(), text.data(), text.size());
    board.publish(rank, batch, 1, text.size());
  };
  const auto text_of = [&](int rank, std::int64_t batch) -> std::string {
    const auto found = board.published(rank, batch);
    if (!found) return "none";
    return {reinterpret_cast<const char*>(found->bytes.data()), found->bytes.size()};
  };
  for (int batch = 1; batch <= 5; ++batch) publish(1, batch, "batch " + std::to_string(batch));
  EXPECT_EQ(text_of(1, 5), "batch 5");
  EXPECT_EQ(text_of(1, 4), "batch 4");
  EXPECT_EQ(text_of(1, 3), "none");
  EXPECT_EQ(text_of(0, 5), "none");
  board.begin_publication(1);  // the rank dies before the end
  EXPECT_EQ(text_of(1, 5), "batch 5");
  EXPECT_EQ(text_of(1, 4), "none");
}

TEST(Generations, ThereMustBeRoom) {
  EXPECT_EQ(why_no_room("/dev/shm", 4096), "");
  EXPECT_THAT(why_no_room("/dev/shm", std::size_t{1} << 50), HasSubstr("would take"));
  EXPECT_THAT(why_no_room("/nowhere/at/all", 4096), HasSubstr("cannot look at"));
}

TEST(MemoryFolder, EndsWithItsOwner) {
  const TemporaryFolder run;
  const fs::path place = memory_folder_of(run.path());
  {
    const MemoryFolder folder(run.path());
    EXPECT_EQ(folder.problem(), "");
    EXPECT_EQ(folder.path(), place);
    struct stat info {};
    ASSERT_EQ(::stat(place.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
    EXPECT_FALSE(newest_in_memory(run.path()));
    Slots slots(place);
    slots.write('a');
    slots.complete(11);
    ASSERT_TRUE(newest_in_memory(run.path()));
    EXPECT_EQ(newest_in_memory(run.path())->about.step, 11);
  }
  EXPECT_FALSE(fs::exists(place));
  EXPECT_FALSE(newest_in_memory(run.path()));
}

// A launcher that is killed leaves its folder to the same run, and any later launch of the user removes it.
TEST(MemoryFolder, OfADeadLauncherIsTakenOverOrRemoved) {
  const TemporaryFolder first, second;
  const auto leave = [](const fs::path& run) {
    const pid_t child = ::fork();
    if (child == 0) {
      const MemoryFolder folder(run);
      Slots slots(folder.path());
      slots.write('a');
      slots.complete(4);
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
  };
  leave(first.path());
  ASSERT_TRUE(fs::exists(memory_folder_of(first.path())));
  {
    const MemoryFolder again(first.path());
    ASSERT_TRUE(newest_in_memory(first.path()));
    EXPECT_EQ(newest_in_memory(first.path())->about.step, 4);
    leave(second.path());  // another launch, while this one lives
    EXPECT_TRUE(fs::exists(memory_folder_of(first.path())));
  }
  ASSERT_TRUE(fs::exists(memory_folder_of(second.path())));
  const TemporaryFolder third;
  const MemoryFolder other(third.path());
  EXPECT_FALSE(fs::exists(memory_folder_of(second.path())));
}

// Between two attempts no process owns the folder of a host without launcher and keeper.
TEST(MemoryFolder, OfRanksStaysForAWhile) {
  const TemporaryFolder run, other_run;
  const pid_t rank = ::fork();
  if (rank == 0) {
    MemoryFolder folder(run.path(), /*host=*/1, ::getpid(), std::chrono::seconds(60));
    folder.leave();
    ::_exit(0);
  }
  ::waitpid(rank, nullptr, 0);
  const fs::path place = memory_folder_of(run.path(), 1);
  const auto another_is_launched = [&] { const MemoryFolder other(other_run.path()); };
  another_is_launched();
  EXPECT_TRUE(fs::exists(place));
  fs::last_write_time(place, fs::file_time_type::clock::now() - std::chrono::seconds(61));
  another_is_launched();
  EXPECT_FALSE(fs::exists(place));
}

// The ranks of a host leave the folder to the launcher if it is there, too.
TEST(MemoryFolder, OfALauncherThatLivesStaysItsOwn) {
  const TemporaryFolder run;
  const MemoryFolder launcher(run.path(), /*host=*/0);
  const auto owner = [&] { return read_file(launcher.path() / "owner.json"); };
  const std::string before = owner();
  MemoryFolder rank(run.path(), /*host=*/0, ::getppid(), std::chrono::seconds(60));
  EXPECT_EQ(rank.path(), launcher.path());
  rank.leave();
  EXPECT_EQ(owner(), before);
}

TEST(MemoryFolder, OfAnotherUserOrForEveryoneIsNotTaken) {
  const TemporaryFolder run;
  const fs::path place = memory_folder_of(run.path());
  fs::create_directory(place);
  fs::permissions(place, fs::perms::all);
  {
    const MemoryFolder folder(run.path());
    EXPECT_THAT(folder.problem(), HasSubstr("cannot make"));
    EXPECT_FALSE(newest_in_memory(run.path()));
  }
  EXPECT_TRUE(fs::exists(place));
  fs::remove_all(place);
}

}  // namespace
}  // namespace dtrain::checkpoints
