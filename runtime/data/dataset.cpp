#include "dtrain/data/dataset.h"

#include <functional>
#include <numeric>

#include "dtrain/data/host_share.h"

namespace dtrain::data {

std::size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::kUint8:
      return 1;
    case ElementType::kInt32:
    case ElementType::kFloat32:
      return 4;
    case ElementType::kInt64:
    case ElementType::kFloat64:
      return 8;
  }
  return 0;
}

std::size_t Field::bytes() const {
  return std::accumulate(shape.begin(), shape.end(), size_of(type), std::multiplies<std::size_t>());
}

HostShare no_sharing() {
  return [](const std::string&, const std::function<SharedMemory()>& make) { return make(); };
}

}  // namespace dtrain::data
