#include "images/decode.h"

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "dtrain/base/text.h"

namespace dtrain::data {

Image::Image(Size size)
    : size_(size),
      pixels_(new std::uint8_t[static_cast<std::size_t>(size.width) * static_cast<std::size_t>(size.height) * kBytes +
                               kBehind]) {}

Image cropped(const Image& image, const Region& region) {
  Image part({region.width, region.height});
  const auto skipped = static_cast<std::size_t>(region.x) * Image::kBytes;
  for (int y = 0; y < region.height; ++y) std::memcpy(part.row(y), image.row(region.y + y) + skipped, part.stride());
  return part;
}

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
    for (std::size_t i = 0; i < width; ++i) value = value << 8 | bytes_[offset + (big_endian_ ? i : width - 1 - i)];
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

constexpr std::array<unsigned char, 3> kJpegStart{0xff, 0xd8, 0xff};
constexpr std::array<unsigned char, 8> kPngStart{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

template <std::size_t N>
bool begins_with(std::span<const std::byte> file, const std::array<unsigned char, N>& start) {
  return file.size() >= N && std::memcmp(file.data(), start.data(), N) == 0;
}

std::string first_bytes(std::span<const std::byte> file) {
  const auto shown = file.first(std::min<std::size_t>(file.size(), 8));
  return to_hex({reinterpret_cast<const char*>(shown.data()), shown.size()});
}

std::unique_ptr<ImageReader> make_reader(std::span<const std::byte> file) {
  std::unique_ptr<ImageReader> reader;
  if (begins_with(file, kJpegStart)) {
    reader = make_jpeg_reader(file);
  } else if (begins_with(file, kPngStart)) {
    reader = make_png_reader(file);
  } else if (file.empty()) {
    throw ImageError("the file is empty", 0);
  } else {
    throw ImageError("neither JPEG nor PNG: its first bytes are " + first_bytes(file), 0);
  }
  const Size size = reader->size();
  if (std::int64_t{size.width} * size.height > kMostPixels) {
    throw ImageError("a picture of " + std::to_string(size.width) + " x " + std::to_string(size.height) +
                         " pixels, and at most " + std::to_string(kMostPixels) + " are decoded",
                     0);
  }
  return reader;
}

void check(const Region& region, Size picture) {
  const bool inside = region.x >= 0 && region.y >= 0 && region.width >= 1 && region.height >= 1 &&
                      region.width <= picture.width - region.x && region.height <= picture.height - region.y;
  if (!inside) {
    throw Error("the region of " + std::to_string(region.width) + " x " + std::to_string(region.height) +
                " pixels at (" + std::to_string(region.x) + ", " + std::to_string(region.y) +
                ") is not within the picture of " + std::to_string(picture.width) + " x " +
                std::to_string(picture.height));
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

DecodedRegion decode_region(std::span<const std::byte> file, const ChooseRegion& choose) {
  const std::unique_ptr<ImageReader> reader = make_reader(file);
  const Size of_file = reader->size();
  const Orientation orientation = reader->orientation();
  const Size picture = shown(of_file, orientation);
  DecodeRequest request = choose(picture);
  check(request.region, picture);
  if (orientation.transpose) std::swap(request.at_least.width, request.at_least.height);
  return shown(reader->read(in_file(request.region, of_file, orientation), request.at_least), orientation);
}

Image decode_image(std::span<const std::byte> file) {
  DecodedRegion decoded = decode_region(file, [](Size picture) {
    return DecodeRequest{{0, 0, picture.width, picture.height}};
  });
  return std::move(decoded.image);  // the whole picture has no pixels around it
}

Size image_size(std::span<const std::byte> file) {
  const std::unique_ptr<ImageReader> reader = make_reader(file);
  return shown(reader->size(), reader->orientation());
}

}  // namespace dtrain::data
