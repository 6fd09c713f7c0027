// `data.training.transforms` and `data.validation.transforms`: what is done with pictures. The list of transforms is
// that of dtrain/data/transforms.h. Plain values.
#pragma once

#include <vector>

#include "dtrain/config/keys.h"
#include "dtrain/data/transforms.h"

namespace dtrain::config {

// One item of the list.
struct TransformStep {
  data::Transform transform;
  bool operator==(const TransformStep&) const = default;
};

struct SourceTransforms {
  std::vector<TransformStep> training, validation;
  bool operator==(const SourceTransforms&) const = default;
};

std::vector<data::Transform> transforms_of(const std::vector<TransformStep>& steps);

void declare_keys(Keys& keys, TransformStep& step);

// The key `transforms` of one source.
void declare_transforms(Keys& keys, std::vector<TransformStep>& steps);

}  // namespace dtrain::config
