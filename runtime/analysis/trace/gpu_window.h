// Finds in the trace of a rank when its GPU had no work, and whether it waited for a launch. One thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dtrain/analysis/operators.h"
#include "trace/trace_reader.h"

namespace dtrain::analysis {

class GpuWindowCounter {
 public:
  // Takes a complete event ("X") of the trace, of any kind and in any order.
  void add(const RawEvent& event);
  // Adds what the events of these batches show. Without work of a GPU it adds nothing.
  void count(std::int64_t batches, GpuWindow& into);

 private:
  struct Span {
    double start_us = 0, end_us = 0;
  };
  struct Work : Span {
    std::int64_t correlation = 0;  // with the call that launched it; 0: not known
  };
  std::vector<Work> works_;                          // kernels, copies and fills of the GPU
  std::unordered_map<std::int64_t, Span> launches_;  // calls of the CUDA runtime and the driver, by correlation
};

}  // namespace dtrain::analysis
