// Reads the kernel's small text files. They report no size. A file may vanish between two reads because its process has
// ended; that is no error. Any thread may call.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace dtrain::host {

// Returns the whole file; empty optional if it does not exist or cannot be read.
std::optional<std::string> read_proc_file(const std::filesystem::path& path);

}  // namespace dtrain::host
