// Reads the GPUs for the agent without ever delaying it: a thread of this class makes the calls to the driver, which
// may take long or hang. The public functions are for the agent's thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/base/log.h"
#include "dtrain/host/gpus.h"

namespace dtrain::profile {

struct GpuSample {
  int index = 0;
  std::optional<double> util;                    // percent
  std::optional<std::uint64_t> free_memory;      // bytes
  std::optional<double> temperature;             // degrees Celsius
  std::optional<std::size_t> foreign_processes;  // other than the ranks
  std::optional<bool> slowed_by_heat;

  static void fields(auto&& visit, auto&... gpu) {
    visit("index", gpu.index...);
    visit("gpu_util", gpu.util...);
    visit("gpu_free_memory", gpu.free_memory...);
    visit("gpu_temperature", gpu.temperature...);
    visit("gpu_foreign_processes", gpu.foreign_processes...);
    visit("gpu_thermal_throttle", gpu.slowed_by_heat...);
  }
};

class GpuSampler {
 public:
  GpuSampler(const std::string& library, const Logger& logger);
  // Does not wait for a thread that hangs in the driver: the process is about to end.
  ~GpuSampler();
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;

  // Returns the current values of each GPU that reports any. If the driver takes longer than `patience`, returns its
  // last answer since the sample before. Empty: there was no answer, so this sample has no GPUs.
  std::vector<GpuSample> sample(const std::set<pid_t>& ranks, std::chrono::milliseconds patience);
  // Returns the GPUs once they are known: not empty in one call at most.
  std::vector<host::GpuInfo> take_new();

 private:
  // State that is shared with the thread, which may outlive this object.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t asked = 0;     // readings the agent wants
    std::uint64_t answered = 0;  // number of the last answered request
    std::uint64_t given = 0;     // number of the last request whose answer is in a sample
    std::vector<host::GpuReading> readings;
    std::vector<host::GpuInfo> found;  // not taken yet
    bool stop = false;
    bool ended = false;  // also when there is no GPU
  };
  static void run(const std::shared_ptr<Shared>& shared, const std::string& library, const Logger& logger);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace dtrain::profile
