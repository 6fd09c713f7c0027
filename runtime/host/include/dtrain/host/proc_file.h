// Reading the kernel's small text files. They have no size to ask for, and may vanish between two reads (a process that
// ended), which is an answer and no error. Any thread may call.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace dtrain::host {

// The whole file; empty optional when it is not there or cannot be read.
std::optional<std::string> read_proc_file(const std::filesystem::path& path);

}  // namespace dtrain::host
