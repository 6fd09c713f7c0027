// GPUs that are not there: a copy of the fake NVML library in a folder of the test's, and the description it reads.
#pragma once

#include <filesystem>
#include <fstream>

#include "dtrain/base/json.h"

namespace dtrain::harness {

class FakeGpus {
 public:
  // `which`: "fake_nvml.so", or "fake_nvml_old.so", which lacks the functions of newer drivers.
  explicit FakeGpus(const std::filesystem::path& folder, const std::string& which = "fake_nvml.so")
      : library_(folder / "libnvidia-ml.so.1") {
    std::filesystem::copy_file(std::filesystem::path(DTRAIN_BINARY_DIR) / "tests" / which, library_);
  }
  std::string library() const { return library_.string(); }
  // At once, whoever is reading.
  void describe(const Json& description) const {
    const std::filesystem::path file = library() + ".json";
    const std::filesystem::path next = file.string() + ".next";
    std::ofstream(next) << description.dump();
    std::filesystem::rename(next, file);
  }

  // 37% busy, 10 of 16 GB free, 61 degrees; and one that does nothing.
  static Json two() {
    return {{"gpus",
             {{{"uuid", "GPU-aaaa"},
               {"name", "Fake A"},
               {"total", 16'000'000'000},
               {"free", 10'000'000'000},
               {"util", 37},
               {"temperature", 61},
               {"pids", Json::array()}},
              {{"uuid", "GPU-bbbb"},
               {"name", "Fake B"},
               {"total", 8'000'000'000},
               {"free", 8'000'000'000},
               {"util", 0},
               {"temperature", 30},
               {"pids", Json::array()}}}}};
  }

 private:
  std::filesystem::path library_;
};

}  // namespace dtrain::harness
