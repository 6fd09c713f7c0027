// DTRAIN_SYNC_DEBUG=error turns waits for the GPU in libtorch's operations into errors while a step is submitted, to
// find a wait that slows every step. The switch is libtorch's (torch.cuda.set_sync_debug_mode in Python). No function
// for it can be called without CUDA headers, so this class sets the variable behind it.
//
// Training thread.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>

namespace dtrain::train {

class SyncDebug {
 public:
  // The first batches may wait: allocators warm up, and strategies are compared.
  static constexpr std::int64_t kFirstBatch = 40;

  // Reads DTRAIN_SYNC_DEBUG: not set or "off": nothing; "error": from batch kFirstBatch on. ConfigError for another
  // value, or if libtorch has no such switch.
  explicit SyncDebug(c10::Device device);

  // Spans code that must not wait.
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
