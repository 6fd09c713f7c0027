// Transforms of whole batches. Private to images.
#pragma once

#include <vector>

#include "dtrain/data/sample.h"
#include "dtrain/data/transforms.h"

namespace dtrain::data {

// `fields`: those of the batch before the transform: the pictures [3, height, width], uint8 or float32, and the
// classes, int64 or probabilities.
BatchFunction mixing(const MixUp& transform, std::vector<Field> fields);
BatchFunction mixing(const CutMix& transform, std::vector<Field> fields);
// Returns the fields after the transform: the classes are float32 [classes].
std::vector<Field> fields_after_mixing(std::vector<Field> fields, std::int64_t classes);

}  // namespace dtrain::data
