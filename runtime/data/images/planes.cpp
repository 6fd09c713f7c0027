#include "dtrain/data/image.h"

#include <cstring>

// Highway compiles this file once for each instruction set and picks one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "images/planes.cpp"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace dtrain::data {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void split_bytes(const std::uint8_t* in, std::size_t pixels, std::uint8_t* out) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= pixels; i += lanes) {
    hn::Vec<decltype(d)> r, g, b, unused;
    hn::LoadInterleaved4(d, in + i * Image::kBytes, r, g, b, unused);
    hn::StoreU(r, d, out + i);
    hn::StoreU(g, d, out + pixels + i);
    hn::StoreU(b, d, out + 2 * pixels + i);
  }
  for (; i < pixels; ++i) {
    for (std::size_t c = 0; c < 3; ++c) out[c * pixels + i] = in[i * Image::kBytes + c];
  }
}

void split_floats(const std::uint8_t* in, std::size_t pixels, const float* factor, const float* offset, float* out) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<std::uint32_t, decltype(d)> d32;
  const hn::Rebind<std::int32_t, decltype(d)> signed32;
  const std::size_t lanes = hn::Lanes(d);
  const auto byte = hn::Set(d32, 0xff);
  std::size_t i = 0;
  for (; i + lanes <= pixels; i += lanes) {
    const auto pixel = hn::LoadU(d32, reinterpret_cast<const std::uint32_t*>(in) + i);
    const auto store = [&](auto value, std::size_t c) {
      const auto number = hn::ConvertTo(d, hn::BitCast(signed32, hn::And(value, byte)));
      hn::StoreU(hn::Add(hn::Mul(number, hn::Set(d, factor[c])), hn::Set(d, offset[c])), d, out + c * pixels + i);
    };
    store(pixel, 0);
    store(hn::ShiftRight<8>(pixel), 1);
    store(hn::ShiftRight<16>(pixel), 2);
  }
  for (; i < pixels; ++i) {
    for (std::size_t c = 0; c < 3; ++c) {
      out[c * pixels + i] = static_cast<float>(in[i * Image::kBytes + c]) * factor[c] + offset[c];
    }
  }
}

void reverse_pixels(const std::uint8_t* in, std::size_t pixels, std::uint8_t* out) {
  const hn::ScalableTag<std::uint32_t> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= pixels; i += lanes) {
    const auto some = hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(in) + i);
    hn::StoreU(hn::Reverse(d, some), d, reinterpret_cast<std::uint32_t*>(out) + (pixels - i - lanes));
  }
  for (; i < pixels; ++i) std::memcpy(out + (pixels - 1 - i) * Image::kBytes, in + i * Image::kBytes, Image::kBytes);
}

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::data
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace dtrain::data {
namespace {

HWY_EXPORT(split_bytes);
HWY_EXPORT(split_floats);
HWY_EXPORT(reverse_pixels);

std::size_t pixels_of(const Image& image) {
  return static_cast<std::size_t>(image.width()) * static_cast<std::size_t>(image.height());
}

}  // namespace

Image mirrored(const Image& image) {
  Image result(image.size());
  const auto pixels = static_cast<std::size_t>(image.width());
  for (int y = 0; y < image.height(); ++y) HWY_DYNAMIC_DISPATCH(reverse_pixels)(image.row(y), pixels, result.row(y));
  return result;
}

void write_planes(const Image& image, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(split_bytes)(image.row(0), pixels_of(image), out);
}

void write_planes(const Image& image, const std::array<float, 3>& factor, const std::array<float, 3>& offset,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(split_floats)(image.row(0), pixels_of(image), factor.data(), offset.data(), out);
}

}  // namespace dtrain::data

#endif  // HWY_ONCE
