// How does libtorch ask for memory of a device, and for pinned memory?
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace dtrain::test::fake_gpu {

c10::DeviceAllocator* device_allocator();
at::HostAllocator* pinned_allocator();

}  // namespace dtrain::test::fake_gpu
