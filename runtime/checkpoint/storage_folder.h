// The folder that checkpoints lie side by side in: the names in it, its lock, making it durable, deleting in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/base/fd.h"

namespace dtrain::checkpoints {

// The names of folders in a storage folder. Any thread.
//
//   step-120            a checkpoint
//   .partial-step-120   one that is being written, or whose saver has died
//   .deleted-step-120   one that is being deleted, or whose deletion was cut short
//   .replaced-step-120  one that step-120 is replacing, on file systems that cannot exchange two folders in one step.
//                       It counts as step-120 until there is one.
inline constexpr std::string_view kStepPrefix = "step-";
inline constexpr std::string_view kPartialPrefix = ".partial-step-";
inline constexpr std::string_view kDeletedPrefix = ".deleted-step-";
inline constexpr std::string_view kReplacedPrefix = ".replaced-step-";
inline constexpr const char* kLockFile = ".saver.lock";

std::string folder_name(std::string_view prefix, std::int64_t step);
inline std::string step_folder(std::int64_t step) {
  return folder_name(kStepPrefix, step);
}
// The number in such a name; empty: it is not one.
std::optional<std::int64_t> step_of(std::string_view name, std::string_view prefix);
// The number in the name of a checkpoint, whole or replaced.
std::optional<std::int64_t> step_of_folder(std::string_view name);

// Makes the names in a folder durable. SystemError.
void sync_folder(const std::filesystem::path& folder);
void sync_folder(int fd, const std::filesystem::path& folder);

// Deletes a file or a folder with what is in it; nothing there is fine. SystemError.
void delete_tree(const std::filesystem::path& path);

// The advisory lock of who writes into a storage folder: it is held as long as the saver lives, so that none that is
// about to write goes unnoticed. On a file system without locks it always succeeds. One thread.
class StorageLock {
 public:
  explicit StorageLock(const std::filesystem::path& storage);
  // True where it is held now. False: another process holds it. SystemError where the folder is not there.
  bool try_take();
  // Takes over a file descriptor that was locked by another process and handed on.
  void adopt(UniqueFd fd) { fd_ = std::move(fd); }
  int fd() const { return fd_.get(); }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

}  // namespace dtrain::checkpoints
