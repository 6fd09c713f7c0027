// The states in memory of one of several hosts, from the side of its keeper: its ranks make the folder, and it ends
// with the keeper. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "dtrain/checkpoint/memory_folder.h"

namespace dtrain::launcher {

class NodeMemory {
 public:
  // `host`: its number. `keeps`: false where no states are kept in memory.
  NodeMemory(int host, bool keeps) : host_(host), keeps_(keeps) {}

  // Takes hold of the folder, once the run's is known.
  void hold(const std::filesystem::path& run_dir);
  // The batch of the newest state of which this host has a part, or all; 0: there is none.
  std::int64_t newest(const std::filesystem::path& run_dir) const;
  // After a failure: what is further than the disk goes there, for --continue. Returns the checkpoint. A failure is a
  // warning on the screen.
  std::optional<std::filesystem::path> save(const std::filesystem::path& run_dir) const;

 private:
  const int host_;
  const bool keeps_;
  std::optional<checkpoints::MemoryFolder> folder_;
};

}  // namespace dtrain::launcher
