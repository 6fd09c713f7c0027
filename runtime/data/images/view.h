// A picture of which crops and a resize are to be made: collected before any pixel is decoded, so that only the needed
// ones are. Private to images.
#pragma once

#include <span>

#include "dtrain/data/image.h"
#include "dtrain/data/random_stream.h"
#include "dtrain/data/transforms.h"

namespace dtrain::data {

class View {
 public:
  explicit View(Size picture);

  Size size() const { return size_; }  // after what was collected
  bool is_resized() const { return is_resized_; }
  void crop(const Region& region);  // of what it shows; within it
  void resize(Size size);           // once

  DecodeRequest request(bool scaled_decoding) const;
  // The pixels, of what was decoded as request() says.
  Image of(const DecodedRegion& decoded) const;
  Image of(const Image& picture) const;

 private:
  Region needed() const;  // of the picture

  Size picture_;
  Size size_;
  Box box_;     // what it shows, in the picture
  Box inside_;  // pixels that have an influence on what it shows
  bool is_resized_ = false;
};

// Collects the transforms from number `first` on that need no pixels. Returns the number of the first one that does, or
// how many there are.
std::size_t collect(View& view, std::span<const Transform> transforms, std::size_t first, RandomStream& random);

// Carries out the transform on pixels. False: it needs none, collect() does it.
bool change_pixels(const Transform& transform, Image& image, RandomStream& random);

}  // namespace dtrain::data
