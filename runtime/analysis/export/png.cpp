#include "export/png.h"

#include <zlib.h>

#include "dtrain/base/error.h"

namespace dtrain::analysis {
namespace {

void put_big_endian(std::string& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>((value >> shift) & 0xff);
}

// Length, kind, content, and the CRC-32 of the latter two.
void put_chunk(std::string& out, const std::string& kind, const std::string& content) {
  put_big_endian(out, static_cast<std::uint32_t>(content.size()));
  const std::string checked = kind + content;
  out += checked;
  put_big_endian(
      out, static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(checked.data()), checked.size())));
}

std::string compressed(const std::string& rows) {
  uLongf size = ::compressBound(rows.size());
  std::string result(size, '\0');
  const int code = ::compress2(reinterpret_cast<Bytef*>(result.data()), &size,
                               reinterpret_cast<const Bytef*>(rows.data()), rows.size(), Z_BEST_SPEED);
  if (code != Z_OK) throw Error("a picture of " + std::to_string(rows.size()) + " bytes cannot be compressed");
  result.resize(size);
  return result;
}

// How the header names the channels; -1: there is no such picture.
int colour_type(int channels) {
  switch (channels) {
    case 1:
      return 0;
    case 3:
      return 2;
    case 4:
      return 6;
    default:
      return -1;
  }
}

}  // namespace

std::string png_of(const Picture& picture) {
  constexpr std::int64_t kMost = 1 << 24;  // rows and columns
  const int type = colour_type(picture.channels);
  const std::int64_t width = picture.width * picture.channels;
  const bool fits = type >= 0 && picture.height > 0 && picture.width > 0 && picture.height <= kMost &&
                    picture.width <= kMost &&
                    picture.height * width == static_cast<std::int64_t>(picture.pixels.size());
  if (!fits) {
    throw Error("a picture of " + std::to_string(picture.height) + "x" + std::to_string(picture.width) + " with " +
                std::to_string(picture.channels) + " channels cannot be made of " +
                std::to_string(picture.pixels.size()) + " bytes");
  }
  std::string header;
  put_big_endian(header, static_cast<std::uint32_t>(picture.width));
  put_big_endian(header, static_cast<std::uint32_t>(picture.height));
  header += '\x08';
  header += static_cast<char>(type);
  header.append(3, '\0');  // compression, filters, interlacing
  std::string rows;
  rows.reserve(picture.pixels.size() + static_cast<std::size_t>(picture.height));
  for (std::int64_t row = 0; row < picture.height; ++row) {
    rows += '\0';  // without a filter
    rows.append(picture.pixels, static_cast<std::size_t>(row * width), static_cast<std::size_t>(width));
  }
  std::string file = "\x89PNG\r\n\x1a\n";
  put_chunk(file, "IHDR", header);
  put_chunk(file, "IDAT", compressed(rows));
  put_chunk(file, "IEND", "");
  return file;
}

}  // namespace dtrain::analysis
