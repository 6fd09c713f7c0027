// The summary of a run, laid out for the terminal (or the pipe) it will be written to. Any thread.
#pragma once

#include <filesystem>
#include <string>

namespace dtrain::run {

// Coloured and as wide as the terminal where `fd` is one; plain otherwise.
std::string summary_text(const std::filesystem::path& run_dir, int fd);

}  // namespace dtrain::run
