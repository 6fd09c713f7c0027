// Names of element types as Python has them.
#pragma once

#include <string>

#include <c10/core/ScalarType.h>

namespace dtrain::train {

// "float32", "bfloat16", …; of a type that Python has no short name for, libtorch's own.
inline std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kLong:
      return "int64";
    default:
      return c10::toString(type);
  }
}

}  // namespace dtrain::train
