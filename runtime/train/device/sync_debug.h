// Makes libtorch's operations that wait for the GPU errors while a step is handed over, so that a wait which slows
// every step is found: DTRAIN_SYNC_DEBUG=error. It is libtorch's own switch (torch.cuda.set_sync_debug_mode in Python),
// for which libtorch has no function that could be called without its CUDA headers; the object behind it is set.
//
// Training thread.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>

namespace dtrain::train {

class SyncDebug {
 public:
  // The first batches may wait: allocators warm up, the strategies are compared.
  static constexpr std::int64_t kFirstBatch = 40;

  // Reads DTRAIN_SYNC_DEBUG: not set or "off": nothing; "error": from batch kFirstBatch on. ConfigError for any other
  // value, and where libtorch has no such switch.
  explicit SyncDebug(c10::Device device);

  // Spans what must not wait.
  class Scope {
   public:
    Scope(SyncDebug& debug, std::int64_t batch);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    int* mode_ = nullptr;
  };

 private:
  int* mode_ = nullptr;  // libtorch's; null: off
};

}  // namespace dtrain::train
