#include "doctor/gpu_words.h"

#include "dtrain/base/text.h"

namespace dtrain::run {

std::string name_gpus(const std::vector<int>& indices) {
  std::vector<std::string> parts;
  for (std::size_t first = 0; first < indices.size();) {
    std::size_t last = first;
    while (last + 1 < indices.size() && indices[last + 1] == indices[last] + 1) ++last;
    parts.push_back(std::to_string(indices[first]));
    if (last > first) parts.back() += (last == first + 1 ? ", " : "-") + std::to_string(indices[last]);
    first = last + 1;
  }
  return (indices.size() == 1 ? "GPU " : "GPUs ") + join(parts, ", ");
}

std::string list_gpus(const std::vector<int>& indices) {
  std::vector<std::string> parts;
  for (const int one : indices) parts.push_back(std::to_string(one));
  return join(parts, ",");
}

}  // namespace dtrain::run
