// Files that are written in one go. Any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "dtrain/checkpoint/manifest.h"
#include "saver/open_folder.h"

namespace dtrain::checkpoints {

// An error of a write: where, with the remedy for a full disk.
[[noreturn]] void fail_to_write(const std::filesystem::path& path, std::uint64_t offset, int code);
[[noreturn]] void fail_to_reserve(const std::filesystem::path& path, std::uint64_t bytes, int code);

// Makes the file, which is not there yet, and synchronises it; its name is durable once the folder is synchronised.
// Returns what the manifest says about it. SystemError.
ManifestFile write_small_file(const OpenFolder& folder, const std::string& name, std::string_view text);

}  // namespace dtrain::checkpoints
