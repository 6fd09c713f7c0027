// The interface of the readers of picture files, and the orientation of a camera. Private to images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "dtrain/data/image.h"

namespace dtrain::data {

// The tag `Orientation` of Exif: the change from the picture in the file to the shown picture: columns and rows are
// mirrored, and then exchanged.
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

// Reads one picture. Size and regions are those of the file, without the orientation applied.
class ImageReader {
 public:
  virtual ~ImageReader() = default;
  virtual Size size() const = 0;
  virtual Orientation orientation() const = 0;
  // Reads a region; called once. `at_least`: as in DecodeRequest.
  virtual DecodedRegion read(const Region& region, Size at_least) = 0;
};

// ImageError if the header is damaged. The bytes must outlive the reader.
std::unique_ptr<ImageReader> make_jpeg_reader(std::span<const std::byte> file);
std::unique_ptr<ImageReader> make_png_reader(std::span<const std::byte> file);

}  // namespace dtrain::data
