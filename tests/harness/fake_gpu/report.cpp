#include "report.h"

#include <algorithm>

#include <c10/util/Exception.h>

namespace dtrain::test::fake_gpu {

void Report::add(const std::string& text) {
  count(&FakeGpuCounts::reports);
  if (std::find(texts_.begin(), texts_.end(), text) == texts_.end()) texts_.push_back(text);
  log_.report(text);
}

void Report::count(std::int64_t FakeGpuCounts::*which) {
  ++(counts_.*which);
  log_.count(which);
}

void throw_cuda_error(int code, const std::string& text) {
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, code,
                              "CUDA error: " + text +
                                  "\nCUDA kernel errors might be asynchronously reported at some other API call, so "
                                  "the stacktrace below might be incorrect.\nFor debugging consider passing "
                                  "CUDA_LAUNCH_BLOCKING=1");
}

}  // namespace dtrain::test::fake_gpu
