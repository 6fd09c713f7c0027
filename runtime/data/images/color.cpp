#include "images/color.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace dtrain::data {

namespace {

// Calls `function` for each pixel of the image with a pointer to its bytes.
template <typename Function>
void for_each_pixel(Image& image, const Function& function) {
  for (int y = 0; y < image.height(); ++y) {
    std::uint8_t* pixel = image.row(y);
    for (int x = 0; x < image.width(); ++x, pixel += Image::kBytes) function(pixel);
  }
}

// Cuts off fractions, like a conversion to uint8.
std::uint8_t to_byte(float value) {
  return static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f));
}

float grey_of(const std::uint8_t* pixel) {
  const float r = pixel[0], g = pixel[1], b = pixel[2];
  return std::floor(r * 0.2989f + g * 0.587f + b * 0.114f);
}

void map_bytes(Image& image, const std::array<std::uint8_t, 256>& table) {
  for_each_pixel(image, [&](std::uint8_t* pixel) {
    for (int c = 0; c < 3; ++c) pixel[c] = table[pixel[c]];
  });
}

template <typename Function>
std::array<std::uint8_t, 256> table_of(const Function& function) {
  std::array<std::uint8_t, 256> table{};
  for (int value = 0; value < 256; ++value)
    table[static_cast<std::size_t>(value)] = to_byte(function(static_cast<float>(value)));
  return table;
}

// Shifts the hue of a pixel whose colours are 0 to 1 (Smith 1978, in torchvision's form).
std::array<float, 3> with_hue(float r, float g, float b, float shift) {
  const float most = std::max({r, g, b}), least = std::min({r, g, b});
  const float range = most - least;
  if (range == 0) return {r, g, b};
  const float saturation = range / most;
  const float rc = (most - r) / range, gc = (most - g) / range, bc = (most - b) / range;
  float hue = most == r ? bc - gc : most == g ? rc + 2 - bc : gc + 4 - rc;
  hue = std::fmod(hue / 6 + 1, 1.0f) + shift;
  hue -= std::floor(hue);
  const float sector = std::floor(hue * 6), fraction = hue * 6 - sector;
  const float p = std::clamp(most * (1 - saturation), 0.0f, 1.0f);
  const float q = std::clamp(most * (1 - saturation * fraction), 0.0f, 1.0f);
  const float t = std::clamp(most * (1 - saturation * (1 - fraction)), 0.0f, 1.0f);
  switch (static_cast<int>(sector) % 6) {
    case 0:
      return {most, t, p};
    case 1:
      return {q, most, p};
    case 2:
      return {p, most, t};
    case 3:
      return {p, q, most};
    case 4:
      return {t, p, most};
    default:
      return {most, p, q};
  }
}

}  // namespace

void adjust_brightness(Image& image, double factor) {
  const auto by = static_cast<float>(factor);
  map_bytes(image, table_of([by](float value) { return value * by; }));
}

void adjust_contrast(Image& image, double factor) {
  double sum = 0;
  for_each_pixel(image, [&](const std::uint8_t* pixel) { sum += grey_of(pixel); });
  const auto mean = static_cast<float>(sum / (static_cast<double>(image.width()) * image.height()));
  const auto by = static_cast<float>(factor), rest = static_cast<float>(1 - factor) * mean;
  map_bytes(image, table_of([by, rest](float value) { return value * by + rest; }));
}

void adjust_saturation(Image& image, double factor) {
  const auto by = static_cast<float>(factor), rest = static_cast<float>(1 - factor);
  for_each_pixel(image, [&](std::uint8_t* pixel) {
    const float grey = grey_of(pixel) * rest;
    for (int c = 0; c < 3; ++c) pixel[c] = to_byte(pixel[c] * by + grey);
  });
}

void adjust_hue(Image& image, double shift) {
  if (shift == 0) return;
  constexpr float kToByte = 255 + 1 - 1e-3f;  // torchvision's factor from 0 to 1 into bytes
  for_each_pixel(image, [&](std::uint8_t* pixel) {
    const auto changed = with_hue(static_cast<float>(pixel[0]) / 255, static_cast<float>(pixel[1]) / 255,
                                  static_cast<float>(pixel[2]) / 255, static_cast<float>(shift));
    for (std::size_t c = 0; c < 3; ++c) pixel[c] = to_byte(changed[c] * kToByte);
  });
}

}  // namespace dtrain::data
