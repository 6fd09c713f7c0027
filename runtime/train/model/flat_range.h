// A stretch of a flat buffer: what a rank updates, or what travels together. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrain::train {

struct FlatRange {
  std::size_t group = 0;            // of FlatParameters
  std::int64_t begin = 0, end = 0;  // elements
  std::int64_t size() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

}  // namespace dtrain::train
