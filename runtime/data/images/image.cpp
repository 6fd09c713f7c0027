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

}  // namespace dtrain::data
