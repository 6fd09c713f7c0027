// CRC-32C (Castagnoli): the checksum of iSCSI, ext4 and many other formats. x86-64 and Arm
// processors have an instruction for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace dtrain {

// Returns the checksum of `bytes`; `before` is the checksum of the bytes that precede them. Any thread.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);
std::uint32_t crc32c(std::string_view text);

// One implementation of the checksum.
struct Crc32cVersion {
  const char* name;
  std::uint32_t (*update)(const unsigned char* data, std::size_t size, std::uint32_t inverted);
  std::uint32_t operator()(std::span<const std::byte> bytes, std::uint32_t before = 0) const;
};
// Returns the versions that this processor can run, the slowest first. crc32c() uses the last one.
std::vector<Crc32cVersion> crc32c_versions();

}  // namespace dtrain
