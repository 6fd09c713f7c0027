// The folder of a run's checkpoints: the names in it, its lock, its synchronisation, deletions, and work on its files
// by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <sys/stat.h>

#include "dtrain/base/file.h"
#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::checkpoints {

// The names of folders in a storage folder. Any thread.
//
//   step-120            a checkpoint
//   .partial-step-120   a checkpoint that is being written, or whose saver has died
//   .deleted-step-120   a checkpoint that is being deleted, or whose deletion was interrupted
//   .replaced-step-120  the old checkpoint while step-120 replaces it, on file systems that cannot exchange two folders
//                       in one step; counts as step-120 if step-120 is missing
inline constexpr std::string_view kStepPrefix = "step-";
inline constexpr std::string_view kPartialPrefix = ".partial-step-";
inline constexpr std::string_view kDeletedPrefix = ".deleted-step-";
inline constexpr std::string_view kReplacedPrefix = ".replaced-step-";
inline constexpr const char* kLockFile = ".saver.lock";

// The names in a folder for states in memory, besides those of whole states (memory_folder.h, host_states.h).
inline constexpr std::string_view kSharedPrefix = ".shared-step-";
inline constexpr std::string_view kPartPrefix = ".part-step-";
inline constexpr std::string_view kGatheredPrefix = ".gathered-step-";
inline constexpr const char* kBoardFile = ".board";
inline constexpr const char* kLineageFile = "lineage.json";

std::string folder_name(std::string_view prefix, std::int64_t step);
inline std::string step_folder(std::int64_t step) {
  return folder_name(kStepPrefix, step);
}
// Returns the step in a folder's name with this prefix; empty: the name is another.
std::optional<std::int64_t> step_of(std::string_view name, std::string_view prefix);
// Returns the step in the name of a complete or replaced checkpoint; empty: the name is another.
std::optional<std::int64_t> step_of_folder(std::string_view name);

// Returns the damage of a checkpoint's file that its kind and size show, if it was `found`; empty: none. Else errno has
// the reason.
std::string size_problem(const ManifestFile& file, bool found, const struct stat& info);

// Gives the files of a state in memory, which has none, checksums. SystemError, DataError.
void add_checksums(const std::filesystem::path& checkpoint);

// True if it is a folder of this user that nobody else may enter; a link is not followed.
bool is_own_folder(const std::filesystem::path& path);

// Makes the names in a folder durable. SystemError.
void sync_folder(const std::filesystem::path& folder);
void sync_folder(int fd, const std::filesystem::path& folder);

// Deletes a file, or a folder with its contents, if it exists. SystemError.
void delete_tree(const std::filesystem::path& path);

// The advisory lock for writing into a storage folder. A saver holds it for its whole life, so that no saver that is
// about to write is overlooked. On a file system without locks it always succeeds. One thread.
class StorageLock {
 public:
  explicit StorageLock(const std::filesystem::path& storage);
  // True: this object holds the lock. False: another process holds it. SystemError if the folder is missing.
  bool try_take();
  // Takes over a file descriptor that another process has locked and passed on.
  void adopt(UniqueFd fd) { fd_ = std::move(fd); }
  int fd() const { return fd_.get(); }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

// Works on the pieces of files by a few threads, so that the disk and the processor work at the same time: calls
// work(0) … work(count - 1), each once, on up to `threads` threads besides the calling thread, which calls
// on_progress(number done) some times a second. Each of the threads calls on_start first. The first exception ends the
// work and is passed on.
void for_each_piece(std::size_t count, int threads, const std::function<void(std::size_t)>& work,
                    const std::function<void(std::size_t)>& on_progress = {},
                    const std::function<void()>& on_start = {});

}  // namespace dtrain::checkpoints
