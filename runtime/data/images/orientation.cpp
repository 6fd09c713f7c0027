#include "images/orientation.h"

#include <cstring>
#include <optional>
#include <utility>

namespace dtrain::data {

namespace {

constexpr std::uint16_t kTiffMark = 0x2a;
constexpr std::uint16_t kOrientationTag = 0x0112;
constexpr std::size_t kTagBytes = 12;
constexpr std::size_t kValueInTag = 8;

// Reads numbers of a TIFF header, which specifies their byte order.
class Tiff {
 public:
  Tiff(std::span<const std::uint8_t> bytes, bool big_endian) : bytes_(bytes), big_endian_(big_endian) {}

  std::optional<std::uint32_t> number(std::size_t offset, std::size_t width) const {
    if (offset > bytes_.size() || bytes_.size() - offset < width) return std::nullopt;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < width; ++i) {
      value = value << 8 | bytes_[offset + (big_endian_ ? i : width - 1 - i)];
    }
    return value;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  bool big_endian_;
};

Orientation named(std::uint32_t tag) {
  switch (tag) {
    case 2:
      return {.mirror_x = true};
    case 3:
      return {.mirror_x = true, .mirror_y = true};
    case 4:
      return {.mirror_y = true};
    case 5:
      return {.transpose = true};
    case 6:
      return {.mirror_y = true, .transpose = true};
    case 7:
      return {.mirror_x = true, .mirror_y = true, .transpose = true};
    case 8:
      return {.mirror_x = true, .transpose = true};
    default:
      return {};
  }
}

}  // namespace

Orientation read_orientation(std::span<const std::uint8_t> tiff) {
  if (tiff.size() < 2 || tiff[0] != tiff[1] || (tiff[0] != 'I' && tiff[0] != 'M')) return {};
  const Tiff header(tiff, tiff[0] == 'M');
  if (header.number(2, 2) != kTiffMark) return {};
  const auto first = header.number(4, 4);
  const auto tags = first ? header.number(*first, 2) : std::nullopt;
  if (!tags) return {};
  for (std::size_t i = 0; i < *tags; ++i) {
    const std::size_t at = std::size_t{*first} + 2 + i * kTagBytes;
    const auto tag = header.number(at, 2);
    if (!tag) return {};
    if (*tag == kOrientationTag) return named(header.number(at + kValueInTag, 2).value_or(0));
  }
  return {};
}

Size shown(Size of_file, const Orientation& orientation) {
  if (orientation.transpose) std::swap(of_file.width, of_file.height);
  return of_file;
}

Region in_file(const Region& region, Size of_file, const Orientation& orientation) {
  Region part = region;
  if (orientation.transpose) {
    std::swap(part.x, part.y);
    std::swap(part.width, part.height);
  }
  if (orientation.mirror_x) part.x = of_file.width - part.x - part.width;
  if (orientation.mirror_y) part.y = of_file.height - part.y - part.height;
  return part;
}

DecodedRegion shown(DecodedRegion of_file, const Orientation& orientation) {
  if (orientation.is_upright()) return of_file;
  const Image& from = of_file.image;
  const Size size = from.size();
  Image to(shown(size, orientation));
  for (int y = 0; y < to.height(); ++y) {
    std::uint8_t* out = to.row(y);
    for (int x = 0; x < to.width(); ++x, out += Image::kBytes) {
      int column = orientation.transpose ? y : x;
      int line = orientation.transpose ? x : y;
      if (orientation.mirror_x) column = size.width - 1 - column;
      if (orientation.mirror_y) line = size.height - 1 - line;
      std::memcpy(out, from.row(line) + static_cast<std::size_t>(column) * Image::kBytes, Image::kBytes);
    }
  }
  Box box = of_file.region;
  if (orientation.mirror_x) box.x = size.width - box.x - box.width;
  if (orientation.mirror_y) box.y = size.height - box.y - box.height;
  if (orientation.transpose) {
    std::swap(box.x, box.y);
    std::swap(box.width, box.height);
  }
  return {std::move(to), box};
}

}  // namespace dtrain::data
