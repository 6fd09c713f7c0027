#include "report.h"

#include <algorithm>

#include <c10/util/Exception.h>

namespace dtrain::test::fake_gpu {

void Report::add(const std::string& text) {
  ++counts.reports;
  if (std::find(texts_.begin(), texts_.end(), text) == texts_.end()) texts_.push_back(text);
}

void throw_cuda_error(int code, const std::string& text) {
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, code, "CUDA error: " + text);
}

}  // namespace dtrain::test::fake_gpu
