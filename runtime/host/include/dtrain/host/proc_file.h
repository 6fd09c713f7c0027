// Reading the kernel's small text files. They report no size. A file may vanish between two reads because its process
// has ended; that is no error. Any thread may call.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace dtrain::host {

// The whole file; empty optional when it is not there or cannot be read.
std::optional<std::string> read_proc_file(const std::filesystem::path& path);

}  // namespace dtrain::host
