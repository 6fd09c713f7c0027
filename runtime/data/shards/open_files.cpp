#include "shards/open_files.h"

#include <algorithm>
#include <utility>

namespace dtrain::data {

OpenFiles::OpenFiles(std::vector<std::filesystem::path> paths) : paths_(std::move(paths)), slots_(paths_.size()) {}

std::shared_ptr<const DataFile> OpenFiles::file(std::size_t number) const {
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = slots_[number];
    slot.used = ++clock_;
    if (slot.file) return slot.file;
  }
  auto opened = std::make_shared<const DataFile>(paths_[number]);  // unlocked: a shared file system may hang
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[number];
  if (slot.file) return slot.file;  // another thread was quicker
  if (open_ == kMostOpen) {
    Slot* oldest = nullptr;
    for (Slot& other : slots_) {
      if (other.file && (!oldest || other.used < oldest->used)) oldest = &other;
    }
    oldest->file.reset();
    --open_;
  }
  slot.file = opened;
  ++open_;
  return opened;
}

}  // namespace dtrain::data
