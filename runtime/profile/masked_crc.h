// The checksums of TensorBoard's event files.
#pragma once

#include <bit>
#include <cstdint>

namespace dtrain::profile {

// Returns a CRC as TFRecord stores it, because its data may contain CRCs: rotated, with a constant added.
constexpr std::uint32_t masked(std::uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8u;
}

}  // namespace dtrain::profile
