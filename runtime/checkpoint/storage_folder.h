// The folder that checkpoints lie side by side in: its lock, making it durable, deleting in it.
#pragma once

#include <filesystem>
#include <utility>

#include "dtrain/base/fd.h"

namespace dtrain::checkpoints {

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
