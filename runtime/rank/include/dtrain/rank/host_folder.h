// The run's folder on a host that does not see the launcher's. It is made there under the same path. At the end the
// launcher collects it and merges it into its own. Plain functions.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/rank/run_folder.h"

namespace dtrain::run {

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

}  // namespace dtrain::run
