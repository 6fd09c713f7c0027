// A run's own folder in the experiment's checkpoint_storage. Plain functions.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/config/checkpoints.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::rank {

// ConfigError if checkpoints cannot be written there; it names the path, the user and the remedy. Writes nothing.
void check_checkpoint_storage(const config::CheckpointStorage& storage);

// Makes a folder for the run there, NNNN-name-<8 hex digits>, and records it in the run's folder. A run that already
// has one, or has checkpoints in the run's folder, keeps that place. Returns the folder; empty: the checkpoints are in
// the run's folder. ConfigError as check_checkpoint_storage().
std::filesystem::path make_checkpoint_folder(const RunFolder& run, const config::CheckpointStorage& storage);

// Returns the folder of the run's checkpoints, as checkpoints::storage_of_run(). ConfigError if a folder outside the
// run's folder is missing, for example because its disk is not mounted. So nothing is read from or written to the disk
// below the mount point.
std::filesystem::path find_checkpoint_folder(const RunFolder& run);
// To be called before a run goes on: ensures that no other run uses its folder in checkpoint_storage. A run that was
// moved keeps its folder. A copy of a run gets a new folder beside the original's, with the checkpoints up to the last
// one that the copy has saved; so does a run whose folder a copy has taken over. Returns a warning about the new
// folder; empty: nothing has changed. ConfigError as find_checkpoint_folder(), or if none of these checkpoints exists
// any more.
std::string claim_checkpoint_folder(const RunFolder& run);
// Returns the run whose checkpoints `run`, a copy, would go on from. Empty: the checkpoints are its own.
std::filesystem::path other_owner_of_checkpoints(const RunFolder& run);

// Returns the run for which a folder of checkpoints was made, by its path then; empty: the folder does not name it.
std::filesystem::path run_of_checkpoint_folder(const std::filesystem::path& folder);

// The run's folder on a host that does not see the launcher's. It is made there under the same path. At the end the
// launcher collects it and merges it into its own. Plain functions.

// Marks the launcher's own folder with the file launch/token. A host that reads the same token there sees that folder.
void mark_folder(const RunFolder& folder, const std::string& token);
bool is_folder_of(const RunFolder& folder, const std::string& token);

// Makes the host's own folder, marked with `token`, in which its ranks write as elsewhere. Replaces one that an earlier
// attempt of this run has left. ConfigError if it holds another run, SystemError if it cannot be made.
void make_host_folder(const RunFolder& folder, const std::string& token, const std::string& plan,
                      const std::string& experiment);

// The file with that mark. A folder is deleted only if it holds the file.
inline constexpr const char* kHostFolderMark = ".dtrain-host-folder";

// Moves plain files, appends lines of events.jsonl, and takes over the keys of plan.json from the host of rank 0.
// Leaves out everything else (links, devices): here a link would lead to a file of this host. Returns the paths left
// out, relative to `from`. SystemError or DataError: not all files could be moved.
std::vector<std::filesystem::path> merge_folder(const RunFolder& from, const RunFolder& to);

}  // namespace dtrain::rank
