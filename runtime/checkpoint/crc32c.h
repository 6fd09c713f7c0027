// CRC-32C (Castagnoli): the checksum of iSCSI, ext4 and many other formats, which x86-64 processors compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dtrain::checkpoint {

// Of `bytes` that follow others with the checksum `before`. Any thread.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);
std::uint32_t crc32c(std::string_view text);
// The same without the processor's instruction; for tests and other processors.
std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t before = 0);

std::string checksum_text(std::uint32_t checksum);  // eight hexadecimal digits

}  // namespace dtrain::checkpoint
