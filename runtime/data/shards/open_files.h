// Keeps the kMostOpen last used files of many open. Private to data. Any thread may call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "data_file.h"

namespace dtrain::data {

class OpenFiles {
 public:
  static constexpr std::size_t kMostOpen = 256;

  explicit OpenFiles(std::vector<std::filesystem::path> paths);
  const std::vector<std::filesystem::path>& paths() const { return paths_; }
  // Returns the file, which it opens if needed. DataError: those of DataFile.
  std::shared_ptr<const DataFile> file(std::size_t number) const;

 private:
  struct Slot {
    std::shared_ptr<const DataFile> file;
    std::uint64_t used = 0;  // time of the last use, in calls
  };

  const std::vector<std::filesystem::path> paths_;
  mutable std::mutex mutex_;
  mutable std::vector<Slot> slots_;
  mutable std::size_t open_ = 0;
  mutable std::uint64_t clock_ = 0;
};

}  // namespace dtrain::data
