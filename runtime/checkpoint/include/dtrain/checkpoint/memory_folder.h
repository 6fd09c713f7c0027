// The folder of a run's states in memory: a folder of this user in /dev/shm, with checkpoints as on disk, but without
// checksums. It outlives the ranks of an attempt, and ends with the launch. Any thread.
//
//   /dev/shm/dtrain-1000-0123456789abcdef/   the digits are a digest of the path of the run's folder
//     owner.json    the process that carries out the run
//     step-120/     a whole state, as a checkpoint (checkpoint.h); its manifest and its name are its completion mark
//     .slot-…/      memory for the next state (generation_slots.h)
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::checkpoints {

// The place of the folder of a run, which may not exist.
std::filesystem::path memory_folder_of(const std::filesystem::path& run);

// Returns the newest whole state of the run in memory; empty: there is none. Reads manifests and sizes.
std::optional<Entry> newest_in_memory(const std::filesystem::path& run);

// Writes that state into the folder of the run's checkpoints, if it is further than they are. Returns the checkpoint;
// empty: there is none. SystemError, also if a saver still writes there after some seconds.
std::optional<std::filesystem::path> save_newest_in_memory(const std::filesystem::path& run,
                                                           const std::filesystem::path& storage);

// The launcher's hold of the folder.
class MemoryFolder {
 public:
  // Removes the folders of this user's runs whose launchers have ended, and makes the folder of this run, or takes over
  // the one that an ended launcher of it has left.
  explicit MemoryFolder(const std::filesystem::path& run);
  // Removes the folder.
  ~MemoryFolder();
  MemoryFolder& operator=(MemoryFolder&&) = delete;

  // The folder stays: the run goes on from it if nothing else of this user is launched before.
  void leave() { path_.clear(); }

  const std::filesystem::path& path() const { return path_; }  // empty: it could not be made
  const std::string& problem() const { return problem_; }      // why; empty: it was made

 private:
  std::filesystem::path path_;
  std::string problem_;
};

// Returns why memory for `bytes` more cannot be had there; empty: it can. A tenth of what is free stays free.
std::string why_no_room(const std::filesystem::path& folder, std::size_t bytes);

}  // namespace dtrain::checkpoints
