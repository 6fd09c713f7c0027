// What do the CUDA runtime's functions for memory do?
//
// A copy or a fill that comes after unfinished operations is made when those have ended, and blocks nothing.
#include <cstring>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "cuda_call.h"
#include "launch.h"

namespace dtrain::test::fake_gpu {

namespace {

at::Tensor host_bytes(const void* data, std::size_t bytes) {
  return at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(bytes)}, at::kByte);
}

Range range_of_bytes(const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  return {begin, begin + bytes};
}

// What a copy or a fill does once its turn has come.
class Later final : public Operation {
 public:
  Later(const Access& access, Clock before, std::function<void(const Access&)> body)
      : Operation(access, std::move(before)), body_(std::move(body)) {}
  bool advance() override {
    body_(access());
    return true;
  }
  void abandon() override { body_(access()); }

 private:
  const std::function<void(const Access&)> body_;
};

// The launch is begun; `before` is what it comes after.
void run_later(const Launch& launch, Clock before, std::function<void(const Access&)> body) {
  machine().unfinished.add(std::make_unique<Later>(launch.access(), std::move(before), std::move(body)));
}

Clock begin_later(Launch& launch, Count count) {
  if (launch.captured()) {
    launch.stream().graph->refuse(900, "operation not permitted when stream is capturing (the fake captures none)");
  }
  return launch.begin_later(count);
}

// Device memory must be allocated, all of it.
bool may_use(const void* data, std::size_t bytes, const char* what) {
  if (!machine().memory.is_device(data) || machine().memory.live_block(data, bytes) != nullptr) return true;
  machine().report.add(std::string(what) + " uses " + std::to_string(bytes) + " bytes of device memory " +
                       machine().memory.describe(reinterpret_cast<std::uintptr_t>(data)) +
                       ", which are not all allocated");
  return false;
}

void copy_from_host(Launch& launch, void* to, const void* from, std::size_t bytes) {
  const bool pinned = machine().pinned.serial(from) != 0;
  launch.uses(range_of_bytes(to, bytes), true);
  if (pinned) launch.uses(range_of_bytes(from, bytes), false);
  if (!pinned) machine().unfinished.wait_for_turn(launch.stream());
  Clock before = begin_later(launch, &FakeGpuCounts::copies_to_device);
  machine().transfers.land(range_of_bytes(from, bytes));
  if (pinned) machine().transfers.to_device(launch.access(), host_bytes(from, bytes));
  run_later(launch, std::move(before), [=](const Access&) {
    machine().transfers.land(range_of_bytes(from, bytes));  // of copies that were unfinished before
    std::memcpy(machine().memory.alias(to), from, bytes);
  });
  if (pinned) return;
  machine().report.count(&FakeGpuCounts::pageable_copies);
  machine().streams.wait(launch.stream(), "cudaMemcpyAsync from pageable memory");
}

void copy_to_host_memory(Launch& launch, void* to, const void* from, std::size_t bytes) {
  const bool pinned = machine().pinned.serial(to) != 0;
  launch.uses(range_of_bytes(from, bytes), false);
  if (pinned) launch.uses(range_of_bytes(to, bytes), true);
  Clock before = begin_later(launch, &FakeGpuCounts::copies_to_host);
  run_later(launch, std::move(before), [=](const Access& access) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor data = host_bytes(machine().memory.alias(from), bytes).clone();
    if (pinned) {
      machine().transfers.to_host(access, host_bytes(to, bytes), data);
    } else {
      std::memcpy(to, data.const_data_ptr(), bytes);
    }
  });
  if (pinned) return;
  machine().report.count(&FakeGpuCounts::pageable_copies);
  machine().streams.wait(launch.stream(), "cudaMemcpyAsync to pageable memory");
}

void copy_between_devices(Launch& launch, void* to, const void* from, std::size_t bytes) {
  launch.uses(range_of_bytes(from, bytes), false);
  launch.uses(range_of_bytes(to, bytes), true);
  Clock before = begin_later(launch, &FakeGpuCounts::copies_on_device);
  run_later(launch, std::move(before),
            [=](const Access&) { std::memmove(machine().memory.alias(to), machine().memory.alias(from), bytes); });
}

cudaError_t copy_async(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t on) {
  const bool to_device = machine().memory.is_device(to);
  const bool from_device = machine().memory.is_device(from);
  const cudaMemcpyKind right = to_device ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                                         : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  if (kind != cudaMemcpyDefault && kind != right) return cudaErrorInvalidValue;
  if (!may_use(to, bytes, "cudaMemcpyAsync") || !may_use(from, bytes, "cudaMemcpyAsync")) return cudaErrorInvalidValue;
  Launch launch(machine().streams.from_native(on), "cudaMemcpyAsync");
  if (right == cudaMemcpyHostToDevice) {
    copy_from_host(launch, to, from, bytes);
  } else if (right == cudaMemcpyDeviceToHost) {
    copy_to_host_memory(launch, to, from, bytes);
  } else if (right == cudaMemcpyDeviceToDevice) {
    copy_between_devices(launch, to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
  return cudaSuccess;
}

cudaError_t fill_async(void* data, int value, std::size_t bytes, cudaStream_t on) {
  if (!machine().memory.is_device(data) || !may_use(data, bytes, "cudaMemsetAsync")) return cudaErrorInvalidValue;
  Launch launch(machine().streams.from_native(on), "cudaMemsetAsync");
  launch.uses(range_of_bytes(data, bytes), true);
  Clock before = begin_later(launch, &FakeGpuCounts::kernels);
  run_later(launch, std::move(before), [=](const Access&) { std::memset(machine().memory.alias(data), value, bytes); });
  return cudaSuccess;
}

cudaError_t attributes_of(cudaPointerAttributes* attributes, const void* data) {
  *attributes = {};
  attributes->device = -1;
  if (machine().memory.live_block(data, 1) != nullptr) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = machine().memory.device_of(data);
    attributes->devicePointer = const_cast<void*>(data);
  } else if (machine().pinned.serial(data) != 0) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = current_device();
    attributes->devicePointer = attributes->hostPointer = const_cast<void*>(data);
  }
  return cudaSuccess;
}

// Waits for the device, as CUDA does.
cudaError_t free_pinned_memory(void* data) {
  if (data == nullptr) return cudaSuccess;
  if (machine().pinned.serial(data) == 0) return cudaErrorInvalidValue;
  machine().streams.wait_for_device(current_device());
  machine().shadow.forget(range_of_bytes(data, machine().pinned.bytes(data)));
  machine().pinned.free(data);
  return cudaSuccess;
}

}  // namespace

}  // namespace dtrain::test::fake_gpu

using namespace dtrain::test::fake_gpu;  // NOLINT(google-build-using-namespace): what follows has C's names

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
  return cuda_call([&] {
    machine().adversaries.check(current_device());
    *data = bytes == 0 ? nullptr : machine().memory.allocate(bytes, Origin::kCuda);
    return cudaSuccess;
  });
}
cudaError_t cudaFree(void* data) {
  return cuda_call([&] {
    if (data != nullptr) machine().memory.free(data, Origin::kCuda);
    return cudaSuccess;
  });
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int) {
  return cuda_call([&] {
    *data = machine().pinned.allocate(bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaFreeHost(void* data) {
  return cuda_call([&] { return free_pinned_memory(data); });
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return cuda_call([&] {
    machine().adversaries.check(current_device());
    std::tie(*free, *total) = machine().memory.info(current_device());
    return cudaSuccess;
  });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  return cuda_call([&] { return attributes_of(attributes, data); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return cuda_call([&] { return copy_async(to, from, bytes, kind, stream); });
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  return cuda_call([&] { return fill_async(data, value, bytes, stream); });
}

}  // extern "C"
