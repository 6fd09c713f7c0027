// How fast a disk takes a file.
#pragma once

#include <cstddef>
#include <filesystem>

namespace dtrain::bench {

// Gigabytes per second at which `dd if=/dev/zero of=FILE bs=8M oflag=direct conv=fsync` writes at least `bytes`, from
// its start to its end. Deletes the file. Error where dd fails.
double write_speed_gb_s(const std::filesystem::path& file, std::size_t bytes);

}  // namespace dtrain::bench
