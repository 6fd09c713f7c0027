// How much memory a rank's tensors have on its device, and what libtorch's caching allocator keeps beside it. Training
// thread.
#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "dtrain/profile/device_memory.h"

namespace dtrain::train {

// nullptr for the CPU, whose memory is the process's, and for a device whose allocator keeps no count.
std::unique_ptr<profile::DeviceMemory> device_memory(const c10::Device& device);

// The device gets back what the allocator keeps for later tensors. The host waits until the device has done all that it
// was given.
void release_unused_memory(const c10::Device& device);

}  // namespace dtrain::train
