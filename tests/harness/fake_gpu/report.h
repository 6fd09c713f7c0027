// What has happened, in numbers and in words?
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/fake_gpu.h"

namespace dtrain::test::fake_gpu {

class Report {
 public:
  void add(const std::string& text);
  std::vector<std::string> take_texts() { return std::exchange(texts_, {}); }
  FakeGpuCounts take_counts() { return std::exchange(counts, {}); }
  // The same text, for as long as the process lives.
  std::string_view keep(const std::string& text) { return *kept_.insert(text).first; }

  FakeGpuCounts counts;

 private:
  std::vector<std::string> texts_;
  std::set<std::string> kept_;
};

// Throws what libtorch throws for a CUDA error.
[[noreturn]] void throw_cuda_error(int code, const std::string& text);

}  // namespace dtrain::test::fake_gpu
