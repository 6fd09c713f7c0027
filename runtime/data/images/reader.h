// The interface of the readers of picture files. Private to images.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "dtrain/data/image.h"
#include "images/orientation.h"

namespace dtrain::data {

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
