// A JPEG or PNG file, of which a part is decoded, as transforms do it.
#include "dtrain/data/image.h"
#include "support.h"

void dtrain::fuzz::picture(Input input) {
  try {
    const data::DecodedRegion decoded = data::decode_region(std::as_bytes(input), [](data::Size size) {
      const data::Region middle{size.width / 3, size.height / 3, (size.width + 2) / 3, (size.height + 2) / 3};
      return data::DecodeRequest{middle, {size.width / 7, size.height / 7}};
    });
    data::resized(decoded.image, decoded.region, {9, 7});
  } catch (const data::ImageError&) {
  }
}
