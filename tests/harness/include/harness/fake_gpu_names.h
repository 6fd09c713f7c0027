// What the GPUs that are not there are called: the fake CUDA and the fake NVML agree.
#pragma once

#include <cstdio>
#include <string>

namespace dtrain::test {

inline constexpr int kMostFakeGpus = 16;

// Of the host's GPU `number`, from 0.
inline std::string fake_gpu_uuid(int number) {
  char text[64];
  std::snprintf(text, sizeof text, "GPU-fake0000-0000-0000-0000-00000000000%x", static_cast<unsigned>(number) % 16);
  return text;
}
// As NVML writes it. CUDA writes the domain with 4 digits.
inline std::string fake_gpu_bus_id(int number) {
  char text[64];
  std::snprintf(text, sizeof text, "00000000:0%X:00.0", static_cast<unsigned>(number) % 16);
  return text;
}
inline std::string fake_gpu_name() {
  return "Fake GPU";
}

}  // namespace dtrain::test
