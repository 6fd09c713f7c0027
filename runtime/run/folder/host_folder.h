// The run's folder on a host that does not see the launcher's: made there under the same path, and collected by the
// launcher in the end. Plain functions.
#pragma once

#include <filesystem>
#include <string>

#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// The launcher's mark in its own folder: the file launch/token. A host that reads the same there sees that folder.
void mark_folder(const RunFolder& folder, const std::string& token);
bool is_folder_of(const RunFolder& folder, const std::string& token);

// Makes the host's own, marked as such with `token`, where ranks write as they do elsewhere; what an earlier attempt of
// this run has left there goes. ConfigError when there is another run in it, SystemError when it cannot be made.
void make_host_folder(const RunFolder& folder, const std::string& token, const std::string& plan,
                      const std::string& experiment);

// The name of that mark, beside which nothing is deleted.
inline constexpr const char* kHostFolderMark = ".dtrain-host-folder";

}  // namespace dtrain::run
