#include "dtrain/data/image.h"

#include <cstring>

namespace dtrain::data {

Image::Image(Size size)
    : size_(size),
      pixels_(new std::uint8_t[static_cast<std::size_t>(size.width) * static_cast<std::size_t>(size.height) * kBytes +
                               kBehind]) {}

Image cropped(const Image& image, const Region& region) {
  Image part({region.width, region.height});
  const auto skipped = static_cast<std::size_t>(region.x) * Image::kBytes;
  for (int y = 0; y < region.height; ++y) {
    std::memcpy(part.row(y), image.row(region.y + y) + skipped, part.stride());
  }
  return part;
}

Image mirrored(const Image& image) {
  Image result(image.size());
  const auto last = static_cast<std::size_t>(image.width()) - 1;
  for (int y = 0; y < image.height(); ++y) {
    const std::uint8_t* in = image.row(y);
    std::uint8_t* out = result.row(y);
    for (std::size_t x = 0; x <= last; ++x) {
      std::memcpy(out + x * Image::kBytes, in + (last - x) * Image::kBytes, Image::kBytes);
    }
  }
  return result;
}

}  // namespace dtrain::data
