#include "images/view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

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

constexpr int kTries = 10;

double between(double least, double most, RandomStream& random) {
  return least + (most - least) * random.uniform();
}

int up_to(int most, RandomStream& random) {
  return static_cast<int>(random.below(static_cast<std::uint64_t>(most) + 1));
}

// Rounds half to even, like Python.
int rounded(double value) {
  return static_cast<int>(std::nearbyint(value));
}

template <typename Sized>
Size size_of(const Sized& transform) {
  return {static_cast<int>(transform.width.value_or(transform.size)), static_cast<int>(transform.size)};
}

Size size_of(const Resize& resize, Size picture) {
  if (resize.width) return {static_cast<int>(*resize.width), static_cast<int>(resize.size)};
  const PictureSize size = resized(PictureSize{picture.width, picture.height}, resize.size);
  return {static_cast<int>(size.width), static_cast<int>(size.height)};
}

Region random_part(const RandomResizedCrop& transform, Size picture, RandomStream& random) {
  const double area = static_cast<double>(picture.width) * picture.height;
  const double least = std::log(transform.min_ratio), most = std::log(transform.max_ratio);
  for (int i = 0; i < kTries; ++i) {
    const double wanted = area * between(transform.min_area, transform.max_area, random);
    const double ratio = std::exp(between(least, most, random));
    const int width = rounded(std::sqrt(wanted * ratio)), height = rounded(std::sqrt(wanted / ratio));
    if (width < 1 || height < 1 || width > picture.width || height > picture.height) continue;
    const int y = up_to(picture.height - height, random), x = up_to(picture.width - width, random);
    return {x, y, width, height};
  }
  const double ratio = static_cast<double>(picture.width) / picture.height;
  Size size = picture;
  if (ratio < transform.min_ratio) {
    size.height = std::clamp(rounded(size.width / transform.min_ratio), 1, picture.height);
  } else if (ratio > transform.max_ratio) {
    size.width = std::clamp(rounded(size.height * transform.max_ratio), 1, picture.width);
  }
  return {(picture.width - size.width) / 2, (picture.height - size.height) / 2, size.width, size.height};
}

bool fits(Size part, Size picture) {
  return part.width <= picture.width && part.height <= picture.height;
}

Region middle(Size part, Size picture) {
  return {rounded((picture.width - part.width) / 2.0), rounded((picture.height - part.height) / 2.0), part.width,
          part.height};
}

Region anywhere(Size part, Size picture, RandomStream& random) {
  const int y = up_to(picture.height - part.height, random), x = up_to(picture.width - part.width, random);
  return {x, y, part.width, part.height};
}

// Adds black edges around the picture.
Image padded(const Image& image, int left, int top, Size size) {
  Image result(size);
  std::memset(result.row(0), 0, result.stride() * static_cast<std::size_t>(size.height));
  for (int y = 0; y < image.height(); ++y) {
    std::memcpy(result.row(top + y) + left * Image::kBytes, image.row(y), image.stride());
  }
  return result;
}

Image padded_to(const Image& image, Size least) {
  const Size size{std::max(image.width(), least.width), std::max(image.height(), least.height)};
  return padded(image, (size.width - image.width()) / 2, (size.height - image.height()) / 2, size);
}

void jitter(const ColorJitter& settings, Image& image, RandomStream& random) {
  const auto factor = [&](double range) { return between(std::max(0.0, 1 - range), 1 + range, random); };
  // All numbers are drawn, used or not, so that a change of one setting does not change the numbers of the others.
  const double brightness = factor(settings.brightness), contrast = factor(settings.contrast);
  const double saturation = factor(settings.saturation), hue = between(-settings.hue, settings.hue, random);
  std::array<int, 4> order{0, 1, 2, 3};
  for (std::size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  for (const int which : order) {
    if (which == 0 && settings.brightness > 0) adjust_brightness(image, brightness);
    if (which == 1 && settings.contrast > 0) adjust_contrast(image, contrast);
    if (which == 2 && settings.saturation > 0) adjust_saturation(image, saturation);
    if (which == 3 && settings.hue > 0) adjust_hue(image, hue);
  }
}

// Transforms that do not apply to single pictures. A transform of pictures without an overload in Collect or
// ChangePixels does not compile.
template <typename One>
concept OfNoPicture = One::kStage != TransformStage::kPicture;

// Applies one transform to the view, without pixels. False: the transform needs pixels.
class Collect {
 public:
  Collect(View& view, RandomStream& random) : view_(view), random_(random) {}

  bool operator()(const Resize& transform) {
    if (view_.is_resized()) return false;
    view_.resize(size_of(transform, view_.size()));
    return true;
  }
  bool operator()(const RandomResizedCrop& transform) {
    if (view_.is_resized()) return false;
    view_.crop(random_part(transform, view_.size(), random_));
    view_.resize(size_of(transform));
    return true;
  }
  bool operator()(const CenterCrop& transform) {
    const Size part = size_of(transform);
    if (!fits(part, view_.size())) return false;
    view_.crop(middle(part, view_.size()));
    return true;
  }
  bool operator()(const RandomCrop& transform) {
    const Size part = size_of(transform);
    if (transform.padding > 0 || !fits(part, view_.size())) return false;
    view_.crop(anywhere(part, view_.size(), random_));
    return true;
  }
  bool operator()(const HorizontalFlip&) { return false; }
  bool operator()(const ColorJitter&) { return false; }
  template <OfNoPicture Other>
  bool operator()(const Other&) {
    return false;
  }

 private:
  View& view_;
  RandomStream& random_;
};

class ChangePixels {
 public:
  ChangePixels(Image& image, RandomStream& random) : image_(image), random_(random) {}

  bool operator()(const HorizontalFlip& transform) {
    if (random_.uniform() < transform.probability) image_ = mirrored(image_);
    return true;
  }
  bool operator()(const ColorJitter& transform) {
    jitter(transform, image_, random_);
    return true;
  }
  bool operator()(const CenterCrop& transform) {
    const Size part = size_of(transform);
    if (fits(part, image_.size())) return false;
    const Image larger = padded_to(image_, part);
    image_ = cropped(larger, middle(part, larger.size()));
    return true;
  }
  bool operator()(const RandomCrop& transform) {
    const Size part = size_of(transform);
    const auto padding = static_cast<int>(transform.padding);
    const Size larger{image_.width() + 2 * padding, image_.height() + 2 * padding};
    if (!fits(part, larger)) {
      throw DataError("random_crop of " + std::to_string(part.width) + " x " + std::to_string(part.height) +
                          " pixels from a picture of " + std::to_string(larger.width) + " x " +
                          std::to_string(larger.height) + (padding > 0 ? " with its padding" : ""),
                      "put a resize before it, or give it a padding");
    }
    if (padding == 0) return false;
    image_ = cropped(padded(image_, padding, padding, larger), anywhere(part, larger, random_));
    return true;
  }
  bool operator()(const Resize&) { return false; }
  bool operator()(const RandomResizedCrop&) { return false; }
  template <OfNoPicture Other>
  bool operator()(const Other&) {
    return false;
  }

 private:
  Image& image_;
  RandomStream& random_;
};

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

View::View(Size picture)
    : picture_(picture),
      size_(picture),
      box_{0, 0, static_cast<double>(picture.width), static_cast<double>(picture.height)},
      inside_(box_) {}

void View::crop(const Region& region) {
  const double across = box_.width / size_.width, down = box_.height / size_.height;
  box_ = {box_.x + region.x * across, box_.y + region.y * down, region.width * across, region.height * down};
  size_ = {region.width, region.height};
  if (!is_resized_) inside_ = box_;  // a later resize uses pixels of the crop alone
}

void View::resize(Size size) {
  size_ = size;
  is_resized_ = true;
}

Region View::needed() const {
  if (!is_resized_) {
    return {static_cast<int>(box_.x), static_cast<int>(box_.y), size_.width, size_.height};
  }
  // The filter's half width, and 1 for rounding.
  const double across = std::max(1.0, box_.width / size_.width) + 1,
               down = std::max(1.0, box_.height / size_.height) + 1;
  const int left = static_cast<int>(std::floor(std::max(inside_.x, box_.x - across)));
  const int top = static_cast<int>(std::floor(std::max(inside_.y, box_.y - down)));
  const int right = static_cast<int>(std::ceil(std::min(inside_.x + inside_.width, box_.x + box_.width + across)));
  const int bottom = static_cast<int>(std::ceil(std::min(inside_.y + inside_.height, box_.y + box_.height + down)));
  return {left, top, std::min(right, picture_.width) - left, std::min(bottom, picture_.height) - top};
}

DecodeRequest View::request(bool scaled_decoding) const {
  DecodeRequest request{needed()};
  if (scaled_decoding && is_resized_) {
    request.at_least = {static_cast<int>(std::ceil(size_.width * request.region.width / box_.width)),
                        static_cast<int>(std::ceil(size_.height * request.region.height / box_.height))};
  }
  return request;
}

Image View::of(const DecodedRegion& decoded) const {
  const Region region = needed();
  const double factor = decoded.region.width / region.width;
  const auto in_image = [&](const Box& box) {
    return Box{decoded.region.x + (box.x - region.x) * factor, decoded.region.y + (box.y - region.y) * factor,
               box.width * factor, box.height * factor};
  };
  if (is_resized_) {
    const Box part{static_cast<double>(region.x), static_cast<double>(region.y), static_cast<double>(region.width),
                   static_cast<double>(region.height)};
    return resized(decoded.image, in_image(box_), size_, in_image(part));
  }
  const Box box = in_image(box_);
  return cropped(decoded.image, {static_cast<int>(box.x), static_cast<int>(box.y), size_.width, size_.height});
}

Image View::of(const Image& picture) const {
  if (is_resized_) return resized(picture, box_, size_, inside_);
  return cropped(picture, {static_cast<int>(box_.x), static_cast<int>(box_.y), size_.width, size_.height});
}

std::size_t collect(View& view, std::span<const Transform> transforms, std::size_t first, RandomStream& random) {
  Collect collect_next(view, random);
  while (first < transforms.size() && std::visit(collect_next, transforms[first])) ++first;
  return first;
}

bool change_pixels(const Transform& transform, Image& image, RandomStream& random) {
  return std::visit(ChangePixels(image, random), transform);
}

}  // namespace dtrain::data
