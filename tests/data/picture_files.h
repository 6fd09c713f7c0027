// Pictures for tests, and files of them.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <jpeglib.h>
#include <png.h>

#include "dtrain/data/dataset.h"
#include "dtrain/data/image.h"

namespace dtrain::data {

// Another colour at each pixel, smooth.
inline Image gradient(Size size) {
  Image image(size);
  for (int y = 0; y < size.height; ++y) {
    for (int x = 0; x < size.width; ++x) {
      std::uint8_t* const pixel = image.row(y) + x * Image::kBytes;
      pixel[0] = static_cast<std::uint8_t>(5 + x * 7 % 240);
      pixel[1] = static_cast<std::uint8_t>(5 + y * 7 % 240);
      pixel[2] = static_cast<std::uint8_t>(5 + (size.width + x + y) * 3 % 240);
      pixel[3] = 0;
    }
  }
  return image;
}

// Rows of RGB.
inline std::string rgb_of(const Image& image) {
  std::string text;
  for (int y = 0; y < image.height(); ++y) {
    for (int x = 0; x < image.width(); ++x) {
      text.append(reinterpret_cast<const char*>(image.row(y)) + x * Image::kBytes, 3);
    }
  }
  return text;
}

inline std::string png_of(const Image& picture) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(picture.width());
  image.height = static_cast<png_uint_32>(picture.height());
  image.format = PNG_FORMAT_RGB;
  const std::string pixels = rgb_of(picture);
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string file(size, '\0');
  if (!png_image_write_to_memory(&image, file.data(), &size, 0, pixels.data(), 0, nullptr)) std::abort();
  file.resize(size);
  return file;
}

inline std::string jpeg_of(const Image& picture, int quality = 90) {
  jpeg_error_mgr errors;
  jpeg_compress_struct encoder{};
  encoder.err = jpeg_std_error(&errors);
  jpeg_create_compress(&encoder);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&encoder, &memory, &size);
  encoder.image_width = static_cast<JDIMENSION>(picture.width());
  encoder.image_height = static_cast<JDIMENSION>(picture.height());
  encoder.input_components = 3;
  encoder.in_color_space = JCS_RGB;
  jpeg_set_defaults(&encoder);
  jpeg_set_quality(&encoder, quality, TRUE);
  jpeg_start_compress(&encoder, TRUE);
  std::string pixels = rgb_of(picture);
  for (std::size_t y = 0; y < encoder.image_height; ++y) {
    JSAMPROW row = reinterpret_cast<JSAMPROW>(pixels.data() + y * encoder.image_width * 3);
    jpeg_write_scanlines(&encoder, &row, 1);
  }
  jpeg_finish_compress(&encoder);
  std::string file(reinterpret_cast<const char*>(memory), size);
  jpeg_destroy_compress(&encoder);
  std::free(memory);
  return file;
}

// Changes, cuts or doubles a few bytes of a file: up to so many times, up to so many bytes.
inline std::string damaged_by_chance(std::string text, RandomStream& random, std::uint64_t most_changes,
                                     std::uint64_t most_bytes) {
  for (std::uint64_t changes = 1 + random.below(most_changes); changes > 0; --changes) {
    const auto at = random.below(text.size());
    switch (random.below(4)) {
      case 0:
        text[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        text[at] ^= static_cast<char>(1 << random.below(8));
        break;
      case 2:
        text.resize(at + 1);
        break;
      default:
        text.insert(at, text.substr(random.below(text.size()), random.below(most_bytes)));
    }
  }
  return text;
}

}  // namespace dtrain::data
