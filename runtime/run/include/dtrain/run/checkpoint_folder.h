// A run's own folder in the experiment's checkpoint_storage. Plain functions.
#pragma once

#include <filesystem>

#include "dtrain/config/checkpoints.h"
#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// ConfigError if checkpoints cannot be written there: names the path, the user and what to do. Writes nothing.
void check_checkpoint_storage(const config::CheckpointStorage& storage);

// Gives a run a folder of its own there, NNNN-name-<8 hex digits>, and records it in the run's folder. A run that has
// one, or checkpoints in its own folder, stays with it. Returns it; empty: the checkpoints lie in the run's folder.
// ConfigError as check_checkpoint_storage().
std::filesystem::path make_checkpoint_folder(const RunFolder& run, const config::CheckpointStorage& storage);

// Where the run's checkpoints lie, as checkpoints::storage_of_run(). ConfigError if that is a folder elsewhere that is
// not there, as when its disk is not mounted: nothing must be read from or written to the disk below the mount.
std::filesystem::path find_checkpoint_folder(const RunFolder& run);
// To be called before a run goes on: ensures that it shares its folder in checkpoint_storage with no other run. A run
// that was moved keeps its folder. A copy of a run gets a folder of its own beside that, with the checkpoints up to the
// last one that it has saved; so does a run whose folder a copy has taken over. Returns a warning about that; empty:
// nothing has changed. ConfigError as find_checkpoint_folder(), and where none of those checkpoints is there any more.
std::string claim_checkpoint_folder(const RunFolder& run);
// If `run` is a copy and would go on from the checkpoints of another run: that run. Empty: the checkpoints are its own.
std::filesystem::path other_owner_of_checkpoints(const RunFolder& run);

// The path, at that time, of the run for which a folder of checkpoints was made; empty: the folder does not say.
std::filesystem::path run_of_checkpoint_folder(const std::filesystem::path& folder);

}  // namespace dtrain::run
