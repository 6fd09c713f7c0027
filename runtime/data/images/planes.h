// Converts a picture in memory to a tensor [3, height, width]. Private to images.
#pragma once

#include <array>
#include <cstdint>

#include "dtrain/data/image.h"

namespace dtrain::data {

// `out` has 3 * width * height elements: all red ones, then green, then blue.
void write_planes(const Image& image, std::uint8_t* out);
// Writes value * factor + offset, with the factor and offset of each colour.
void write_planes(const Image& image, const std::array<float, 3>& factor, const std::array<float, 3>& offset,
                  float* out);

}  // namespace dtrain::data
