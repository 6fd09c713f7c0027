// A folder in which a checkpoint is made, and functions that write small files into it. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "dtrain/base/fd.h"
#include "dtrain/checkpoint/manifest.h"

namespace dtrain::checkpoints {

// The open descriptor makes sure that files go into this folder, not into a later folder of the same name.
struct OpenFolder {
  std::filesystem::path path;  // for messages
  UniqueFd fd;
};

// Throws the error of a write with its place, and with the remedy for a full disk.
[[noreturn]] void fail_to_write(const std::filesystem::path& path, std::uint64_t offset, int code);
[[noreturn]] void fail_to_reserve(const std::filesystem::path& path, std::uint64_t bytes, int code);

// Makes a new file and synchronises it; its name is durable once the folder is synchronised. Returns the file's entry
// for the manifest. SystemError.
ManifestFile write_small_file(const OpenFolder& folder, const std::string& name, std::string_view text);

}  // namespace dtrain::checkpoints
