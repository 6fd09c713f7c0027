// The orientation of a camera: the tag `Orientation` of Exif. Private to images.
#pragma once

#include <cstdint>
#include <span>

#include "dtrain/data/image.h"

namespace dtrain::data {

// The change from the picture in the file to the shown picture: columns and rows are mirrored, and then exchanged.
struct Orientation {
  bool mirror_x = false;
  bool mirror_y = false;
  bool transpose = false;
  bool is_upright() const { return !mirror_x && !mirror_y && !transpose; }
};

// Reads the tag from a TIFF header with its tags (Exif 2.3, section 4.6); upright if there is no valid tag.
Orientation read_orientation(std::span<const std::uint8_t> tiff);

Size shown(Size of_file, const Orientation& orientation);
// Returns the part of the file's picture that is shown as `region`.
Region in_file(const Region& region, Size of_file, const Orientation& orientation);
// Returns the shown picture for a decoded picture of the file.
DecodedRegion shown(DecodedRegion of_file, const Orientation& orientation);

}  // namespace dtrain::data
