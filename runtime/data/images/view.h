// The transforms of one picture. Private to images.
#pragma once

#include <span>

#include "dtrain/data/dataset.h"
#include "dtrain/data/image.h"
#include "dtrain/data/transforms.h"

namespace dtrain::data {

// Collects the crops and the resize of a picture before any pixel is decoded, so that only needed pixels are decoded.
class View {
 public:
  explicit View(Size picture);

  Size size() const { return size_; }  // size after the collected transforms
  bool is_resized() const { return is_resized_; }
  void crop(const Region& region);  // `region`: within size()
  void resize(Size size);           // at most once

  DecodeRequest request(bool scaled_decoding) const;
  // Returns the pixels, from a part that was decoded by request(), or from the whole picture.
  Image of(const DecodedRegion& decoded) const;
  Image of(const Image& picture) const;

 private:
  Region needed() const;  // part of the picture

  Size picture_;
  Size size_;
  Box box_;     // the shown part of the picture
  Box inside_;  // pixels that influence the shown part
  bool is_resized_ = false;
};

// Collects the transforms from number `first` on that need no pixels. Returns the number of the first transform that
// needs pixels, or the number of transforms.
std::size_t collect(View& view, std::span<const Transform> transforms, std::size_t first, RandomStream& random);

// Applies the transform to pixels. False: the transform needs no pixels, and collect() applies it.
bool change_pixels(const Transform& transform, Image& image, RandomStream& random);

// Changes of colours, in place, with the results of the functions of the same names in
// torchvision.transforms.v2.functional for uint8.
void adjust_brightness(Image& image, double factor);
void adjust_contrast(Image& image, double factor);
void adjust_saturation(Image& image, double factor);
void adjust_hue(Image& image, double shift);  // -0.5 to 0.5: share of the colour circle

}  // namespace dtrain::data
