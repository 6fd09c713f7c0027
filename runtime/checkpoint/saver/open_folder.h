// A folder in which a checkpoint is made, and small files that are written into it. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "dtrain/base/fd.h"
#include "dtrain/checkpoint/manifest.h"

namespace dtrain::checkpoints {

// It is open, so that files are made in it and in no other that takes its name later.
struct OpenFolder {
  std::filesystem::path path;  // for messages
  UniqueFd fd;
};

// An error of a write: where, with the remedy for a full disk.
[[noreturn]] void fail_to_write(const std::filesystem::path& path, std::uint64_t offset, int code);
[[noreturn]] void fail_to_reserve(const std::filesystem::path& path, std::uint64_t bytes, int code);

// Makes the file, which is not there yet, and synchronises it; its name is durable once the folder is synchronised.
// Returns what the manifest says about it. SystemError.
ManifestFile write_small_file(const OpenFolder& folder, const std::string& name, std::string_view text);

}  // namespace dtrain::checkpoints
