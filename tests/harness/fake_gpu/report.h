// What has happened, in numbers and in words?
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/fake_gpu.h"
#include "log.h"

namespace dtrain::test::fake_gpu {

class Report {
 public:
  void add(const std::string& text);
  void count(std::int64_t FakeGpuCounts::*which);
  std::vector<std::string> take_texts() { return std::exchange(texts_, {}); }
  FakeGpuCounts take_counts() { return std::exchange(counts_, {}); }
  // The same text, for as long as the process lives.
  std::string_view keep(const std::string& text) { return *kept_.insert(text).first; }

 private:
  FakeGpuCounts counts_;
  std::vector<std::string> texts_;
  std::set<std::string> kept_;
  Log log_;
};

// Throws what libtorch throws for a CUDA error.
[[noreturn]] void throw_cuda_error(int code, const std::string& text);

}  // namespace dtrain::test::fake_gpu
