// Names the operations that a rank has entered, and ends those that a GPU does not finish.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "collective/descriptor.h"
#include "dtrain/base/clock.h"
#include "nccl/nccl_device.h"

namespace dtrain::comm {

// The operation or replay that a rank has entered, as errors name it and ranks compare it.
struct NcclEntry {
  Descriptor descriptor;                      // of a replay the sequence number alone counts
  std::shared_ptr<const std::string> replay;  // name of a replayed graph; null: an operation
};

inline std::string describe(const NcclEntry& entry) {
  return entry.replay ? *entry.replay : describe(entry.descriptor);
}

// Ends operations that a GPU does not finish, also while the thread that issued them is blocked in a call of CUDA: a
// launch blocks when the device's queue is full, and it is full when an operation in front of it never ends. A thread
// of its own looks at the first operation that is under way.
//
// watch() and watch_nothing() come from the owner's thread, the callback from the watchdog's.
class NcclWatchdog {
 public:
  using Expired = std::function<void(const NcclEntry& entry, Nanoseconds began)>;

  // The deadline of an operation is `timeout` after everything in front of it has ended on this GPU.
  NcclWatchdog(SharedNcclApi api, int device, std::chrono::milliseconds timeout, Expired expired);
  ~NcclWatchdog();
  NcclWatchdog& operator=(NcclWatchdog&&) = delete;

  // Watches an operation. The events must outlive the next call of watch() or watch_nothing(). `began` has fired when
  // the operation may begin, `done` when it has ended. Without `began` the operation may begin now.
  void watch(const NcclEntry& entry, const CudaEvent* began, const CudaEvent& done);
  void watch_nothing();

 private:
  struct Watched {
    NcclEntry entry;
    const CudaEvent* began = nullptr;
    const CudaEvent* done = nullptr;
    std::optional<Nanoseconds> since;
  };
  void run();
  // Returns the operation if its time is over.
  std::optional<Watched> look();

  const SharedNcclApi api_;
  const int device_;
  const std::chrono::milliseconds timeout_;
  const Expired expired_;
  SystemClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Watched> watched_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace dtrain::comm
