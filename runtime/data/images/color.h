// Changes of colours, in place, with the results of the functions of the same names in
// torchvision.transforms.v2.functional for uint8. Private to images.
#pragma once

#include "dtrain/data/image.h"

namespace dtrain::data {

void adjust_brightness(Image& image, double factor);
void adjust_contrast(Image& image, double factor);
void adjust_saturation(Image& image, double factor);
void adjust_hue(Image& image, double shift);  // -0.5 to 0.5: share of the colour circle

}  // namespace dtrain::data
