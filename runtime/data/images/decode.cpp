#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "dtrain/base/text.h"
#include "dtrain/data/image.h"
#include "images/orientation.h"
#include "images/reader.h"

namespace dtrain::data {

namespace {

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
