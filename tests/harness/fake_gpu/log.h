// What do processes leave behind that no test can ask? include/harness/fake_gpu.h describes the files.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "harness/fake_gpu.h"

namespace dtrain::test::fake_gpu {

// Nothing is written without DTRAIN_FAKE_GPU_LOG. Every change is in the files at once, so that they are whole even
// after SIGKILL.
class Log {
 public:
  Log();

  void report(const std::string& text);  // each text once
  void count(std::int64_t FakeGpuCounts::*which);

 private:
  FakeGpuCounts totals_;
  std::set<std::string> written_;
  int reports_ = -1;
  char* counts_ = nullptr;  // the file, mapped
};

}  // namespace dtrain::test::fake_gpu
