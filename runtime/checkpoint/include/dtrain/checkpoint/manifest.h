// manifest.json: what a checkpoint is, and the checksums of its files. One JSON object. In every version of the format
// its last line has the checksum of all bytes before it. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::checkpoints {

inline constexpr int kFormatVersion = 1;
inline constexpr std::size_t kPieceBytes = 4 << 20;  // each has a checksum

struct ManifestFile {
  std::string name;  // of a file in the checkpoint's folder
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> checksums;  // CRC-32C of each piece; the last may be shorter; none for an empty file
  std::string not_finite{};              // its first weight with a value that is not finite; empty: there is none
  bool operator==(const ManifestFile&) const = default;
};
Json to_json(const ManifestFile& file);
// DataError, also if the number of checksums does not fit the size.
ManifestFile manifest_file_from(const Json& json);

struct Manifest {
  About about;
  std::vector<ManifestFile> files;
};
std::string to_text(const Manifest& manifest);
// DataError: damaged, or written by a newer version of dtrain.
Manifest parse_manifest(std::string_view text);
// The manifest of a checkpoint's folder. DataError, also if its step is not the one in the folder's name; SystemError.
Manifest read_manifest(const std::filesystem::path& checkpoint);

std::string checksum_text(std::uint32_t checksum);  // eight hexadecimal digits
std::int64_t total_bytes(const std::vector<ManifestFile>& files);
// "model.safetensors: layer.weight", the first weight with a value that is not finite; empty: there is none.
std::string not_finite_weight(const std::vector<ManifestFile>& files);

}  // namespace dtrain::checkpoints
