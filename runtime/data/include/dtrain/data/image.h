// Pictures in memory, and how they come from the bytes of a JPEG or PNG file. Pure functions; any thread may call them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "dtrain/base/error.h"

namespace dtrain::data {

struct Size {
  int width = 0;
  int height = 0;
  bool operator==(const Size&) const = default;
};

// Whole pixels of a picture: columns from `x` on, rows from `y` on.
struct Region {
  int x = 0, y = 0;
  int width = 0, height = 0;
  bool operator==(const Region&) const = default;
};

// A part of a picture that need not begin at a whole pixel.
struct Box {
  double x = 0, y = 0;
  double width = 0, height = 0;
  bool operator==(const Box&) const = default;
};

// Rows from top to bottom, four bytes a pixel: red, green, blue, and one without a meaning. There are kBehind more
// bytes after the last row, for code that reads or writes several pixels at once.
class Image {
 public:
  static constexpr int kBytes = 4;  // of a pixel
  static constexpr std::size_t kBehind = 32;

  Image() = default;
  explicit Image(Size size);  // the pixels have any values

  Size size() const { return size_; }
  int width() const { return size_.width; }
  int height() const { return size_.height; }
  std::size_t stride() const { return static_cast<std::size_t>(size_.width) * kBytes; }  // bytes from row to row
  std::uint8_t* row(int y) { return pixels_.get() + stride() * static_cast<std::size_t>(y); }
  const std::uint8_t* row(int y) const { return pixels_.get() + stride() * static_cast<std::size_t>(y); }

 private:
  Size size_;
  std::unique_ptr<std::uint8_t[]> pixels_;
};

// The bytes of a file are no picture that can be decoded. `offset`: the approximate place of the error in the bytes.
class ImageError : public DataError {
 public:
  ImageError(const std::string& what, std::uint64_t offset) : DataError(what), offset_(offset) {}
  std::uint64_t offset() const { return offset_; }

 private:
  std::uint64_t offset_;
};

// The part of a picture to decode. Coordinates are those of the shown picture, with its orientation applied.
struct DecodeRequest {
  Region region;
  // Not 0: a JPEG may be decoded at a half, a quarter or an eighth of its size (in the domain of its DCT, which takes a
  // fraction of the time), as long as the region does not become smaller than this. docs/data.md describes the effect.
  Size at_least{};
};
using ChooseRegion = std::function<DecodeRequest(Size picture)>;

struct DecodedRegion {
  Image image;  // the region, and possibly some pixels around it
  Box region;   // place of the region in `image`
};

// Decodes a part of a picture that `choose` names when it knows the picture's size. Only the rows and columns that the
// region needs are decoded (as far as the file's format allows); rows after the region's last row are not read.
//
// Exactly the pixels that torchvision.io.decode_image gives in mode RGB with apply_exif_orientation (libjpeg-turbo's
// defaults: accurate integer DCT, smooth chroma): grey becomes RGB; CMYK and YCCK too, as Pillow converts them;
// transparency is dropped; of 16 bits the upper 8 count. ImageError if the bytes are no JPEG or PNG, are damaged or end
// too early, or if the picture has more than kMostPixels pixels.
DecodedRegion decode_region(std::span<const std::byte> file, const ChooseRegion& choose);
// Decodes the whole picture.
Image decode_image(std::span<const std::byte> file);
// Returns the size of the shown picture. Reads the header alone.
Size image_size(std::span<const std::byte> file);

inline constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;

// Returns the pixels of the region.
Image cropped(const Image& image, const Region& region);
Image mirrored(const Image& image);  // left and right exchanged

// `box` of the image, scaled to `size` with an antialiased triangle filter: what
// torchvision.transforms.functional.resize gives for uint8 tensors with bilinear interpolation and antialias=True.
// Pixels outside `inside`, which contains the box, have no influence; without it, those outside the box have none.
Image resized(const Image& image, const Box& box, Size size);
Image resized(const Image& image, const Box& box, Size size, const Box& inside);

// Converts a picture to a tensor [3, height, width]: `out` has 3 * width * height elements, all red ones, then green,
// then blue.
void write_planes(const Image& image, std::uint8_t* out);
// Writes value * factor + offset, with the factor and offset of each colour.
void write_planes(const Image& image, const std::array<float, 3>& factor, const std::array<float, 3>& offset,
                  float* out);

}  // namespace dtrain::data
