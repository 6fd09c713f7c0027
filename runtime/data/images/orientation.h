// How a camera was held: the tag `Orientation` of Exif. Private to images.
#pragma once

#include <cstdint>
#include <span>

#include "dtrain/data/image.h"

namespace dtrain::data {

// What turns the picture of a file into the one to be shown: columns and rows of the file are mirrored, then they
// change places.
struct Orientation {
  bool mirror_x = false;
  bool mirror_y = false;
  bool transpose = false;
  bool is_upright() const { return !mirror_x && !mirror_y && !transpose; }
};

// Of the bytes of a TIFF header with its tags (Exif 2.3, section 4.6); upright if they have no valid tag.
Orientation read_orientation(std::span<const std::uint8_t> tiff);

Size shown(Size of_file, const Orientation& orientation);
// The part of the file's picture that is shown as `region`.
Region in_file(const Region& region, Size of_file, const Orientation& orientation);
// The picture to be shown of one as the file has it.
DecodedRegion shown(DecodedRegion of_file, const Orientation& orientation);

}  // namespace dtrain::data
