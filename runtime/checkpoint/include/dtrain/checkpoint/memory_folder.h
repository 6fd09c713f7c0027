// The folder of a run's states in memory: a folder of this user in /dev/shm, with checkpoints as on disk, but without
// checksums. It outlives the ranks of an attempt, and ends with the launch, or with the keeper of the host. Any thread.
//
//   /dev/shm/dtrain-1000-0123456789abcdef/   the digits are a digest of the path of the run's folder, and of the host
//     owner.json      the process that carries out the run
//     lineage.json    the attempt that writes here, where each host has a keeper (host_states.h)
//     step-120/       a whole state, as a checkpoint (checkpoint.h); its manifest and its name are its completion mark
//     .slot-…/        memory for the next state (generation_slots.h)
//     .board          what the ranks of the host say to each other of the states
//     .part-step-…/   this host's part of a state that several hosts have together (host_states.h)
//     .shared-step-…/ what all ranks have alike, where survivors of several hosts have saved it (host_states.h)
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include <sys/types.h>
#include <unistd.h>

#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::checkpoints {

inline constexpr int kNoKeeper = -1;

// The place of the folder of a run, which may not exist. `host`: the number of the host whose keeper has it.
std::filesystem::path memory_folder_of(const std::filesystem::path& run, int host = kNoKeeper);

// Returns the newest whole state of the run in memory; empty: there is none. Reads manifests and sizes.
std::optional<Entry> newest_in_memory(const std::filesystem::path& run, int host = kNoKeeper);

// The batch of the newest state that a host has a part of, or all; 0: there is none.
std::int64_t newest_batch_in_memory(const std::filesystem::path& run, int host);

// Writes the newest whole state, or one of which this host has all parts, into the folder of the run's checkpoints, if
// it is further than they are. Returns the checkpoint; empty: there is none. SystemError, also if a saver still writes
// there after some seconds; DataError.
std::optional<std::filesystem::path> save_newest_in_memory(const std::filesystem::path& run,
                                                           const std::filesystem::path& storage, int host = kNoKeeper);

// The hold of the folder that the launcher has, or the keeper of a host.
class MemoryFolder {
 public:
  // Removes the folders of this user's runs whose launchers have ended, and makes the folder of this run, or takes over
  // the one that an ended launcher of it has left. `owner`: the launcher, or the host's keeper. `stays`: a host on
  // which neither of them is has ranks as owners, and keeps the folder that long between attempts; an owner that lives
  // stays.
  explicit MemoryFolder(const std::filesystem::path& run, int host = kNoKeeper, pid_t owner = ::getpid(),
                        std::chrono::seconds stays = std::chrono::seconds(0));
  // Removes the folder.
  ~MemoryFolder();
  MemoryFolder& operator=(MemoryFolder&&) = delete;

  // The states of a run that begins anew are not those of an earlier one with the same folder.
  void clear() const;
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
