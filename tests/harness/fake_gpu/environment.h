// What does the environment ask of the fake GPUs? include/harness/fake_gpu.h describes the variables.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace dtrain::test::fake_gpu {

// A number from 0 to `most`; std::out_of_range names the variable.
int number_from(const char* variable, int otherwise, int most);

// The host's GPUs that CUDA_VISIBLE_DEVICES shows, in its order, as CUDA reads it: indices, or UUIDs or what they begin
// with, up to the first that is wrong; none if one is there twice.
std::vector<int> visible_gpus(int installed);

struct Fault {
  enum class Kind { kAllocation, kLost, kNcclError, kNcclHang } kind;
  int at = 1;      // the n-th
  int code = 719;  // CUDA's, of a lost device
};
// This process's; std::invalid_argument where DTRAIN_FAKE_GPU_FAULT cannot be read.
std::optional<Fault> fault_from_environment();

}  // namespace dtrain::test::fake_gpu
