// What do the CUDA runtime's functions for devices, streams and events do?
//
// Streams and events are libtorch's: a cudaStream_t is what c10::Stream::native_handle() returns.
#include <cstdio>
#include <set>

#include "cuda_call.h"
#include "cuda_errors.h"
#include "environment.h"
#include "harness/fake_gpu_names.h"

namespace dtrain::test::fake_gpu {

namespace {

std::set<const Event*>& runtime_events() {
  static auto& events = *new std::set<const Event*>;
  return events;
}

Event& event_of(cudaEvent_t handle) {
  auto* const event = reinterpret_cast<Event*>(handle);
  if (runtime_events().count(event) == 0) throw_cuda_error(400, "invalid resource handle");
  return *event;
}

Stream& stream_of(cudaStream_t handle) {
  return machine().streams.from_native(handle);
}

cudaError_t new_event(cudaEvent_t* made, unsigned int flags) {
  auto* const event = new Event{.device = current_device()};
  event->timed = (flags & cudaEventDisableTiming) == 0;
  runtime_events().insert(event);
  *made = reinterpret_cast<cudaEvent_t>(event);
  return cudaSuccess;
}

cudaError_t new_stream(cudaStream_t* made) {
  if (machine().devices == 0) return cudaErrorNoDevice;
  machine().adversaries.check(current_device());
  *made = reinterpret_cast<cudaStream_t>(&machine().streams.create(current_device()));
  return cudaSuccess;
}

cudaError_t record(cudaEvent_t handle, cudaStream_t on) {
  Event& event = event_of(handle);
  Stream& stream = stream_of(on);
  if (event.device != stream.handle.device_index()) return cudaErrorInvalidResourceHandle;
  machine().streams.record(event, stream);
  return cudaSuccess;
}

cudaError_t elapsed(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  Event& first = event_of(from);
  Event& last = event_of(to);
  if (!first.timed || !last.timed || !first.recorded || !last.recorded) return cudaErrorInvalidResourceHandle;
  if (!machine().streams.query(first) || !machine().streams.query(last)) return cudaErrorNotReady;
  *milliseconds = static_cast<float>((Streams::time_us(last) - Streams::time_us(first)) / 1000);
  return cudaSuccess;
}

cudaError_t bus_id(char* text, int length, int device) {
  if (device < 0 || device >= machine().devices) return cudaErrorInvalidDevice;
  const std::string id = fake_gpu_bus_id(machine().gpus[static_cast<std::size_t>(device)]).substr(4);
  if (length < static_cast<int>(id.size()) + 1) return cudaErrorInvalidValue;
  id.copy(text, id.size());
  text[id.size()] = '\0';
  return cudaSuccess;
}

}  // namespace

}  // namespace dtrain::test::fake_gpu

using namespace dtrain::test::fake_gpu;  // NOLINT(google-build-using-namespace): what follows has C's names

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  return cuda_error_text(error);
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_cuda_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last_cuda_error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = machine().devices;
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return machine().devices > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  return cuda_call([&] {
    if (device < 0 || device >= machine().devices) return cudaErrorInvalidDevice;
    set_current_device(static_cast<c10::DeviceIndex>(device));
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceSynchronize() {
  return cuda_call([] {
    machine().streams.wait_for_device(current_device());
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return cuda_call([&] { return bus_id(text, length, device); });
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  const auto exists = [](int one) { return one >= 0 && one < machine().devices; };
  if (!exists(device) || !exists(peer)) return failed(cudaErrorInvalidDevice);
  *can = device == peer ? 0 : 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cuda_call([&] { return new_stream(stream); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  return cuda_call([&] { return new_stream(stream); });
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  return cuda_call([&] { return new_stream(stream); });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return cuda_call([&] {
    machine().streams.destroy(stream_of(stream));
    return cudaSuccess;
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return cuda_call([&] { return machine().streams.query(stream_of(stream)) ? cudaSuccess : cudaErrorNotReady; });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return cuda_call([&] {
    machine().streams.wait(stream_of(stream));
    return cudaSuccess;
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  return cuda_call([&] {
    machine().streams.block(event_of(event), stream_of(stream));
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cuda_call([&] { return new_event(event, cudaEventDefault); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return cuda_call([&] { return new_event(event, flags); });
}
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return cuda_call([&] {
    Event* const event = &event_of(handle);
    runtime_events().erase(event);
    delete event;
    return cudaSuccess;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cuda_call([&] { return record(event, stream); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return cuda_call([&] { return machine().streams.query(event_of(event)) ? cudaSuccess : cudaErrorNotReady; });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return cuda_call([&] {
    machine().streams.wait(event_of(event));
    return cudaSuccess;
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return cuda_call([&] { return elapsed(milliseconds, from, to); });
}

}  // extern "C"
