// Reads the memory of a rank's tensors on its device and the memory that libtorch's caching allocator reserves.
// Training thread.
#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "dtrain/profile/device_memory.h"

namespace dtrain::train {

// Returns nullptr for the CPU, whose memory is the process's, and for a device whose allocator does not count.
std::unique_ptr<profile::DeviceMemory> device_memory(const c10::Device& device);

// Returns the memory that the allocator keeps for later tensors to the device. Waits until the device has finished all
// work.
void release_unused_memory(const c10::Device& device);

}  // namespace dtrain::train
