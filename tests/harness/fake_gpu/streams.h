// What do streams and events know of each other, and what does the host know of them?
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Stream.h>

#include "harness/fake_gpu_names.h"
#include "order.h"

namespace dtrain::test::fake_gpu {

class Graph;

inline constexpr int kMaxDevices = kMostFakeGpus;

struct Stream {
  std::size_t index = 0;  // in clocks
  c10::Stream handle;
  Clock clock;
  double microseconds = 0;  // when its last operation ends, on the host's monotonic clock; see now_us()
  int delayed_queries = 0;
  Graph* graph = nullptr;  // that its operations are captured in
  int launching = 0;       // operations that NCCL has been given and has not launched yet
  bool destroyed = false;

  std::string name() const;
};

struct Event {
  c10::DeviceIndex device = 0;
  Clock clock;
  double microseconds = 0;  // when its stream came to it, at the earliest: see time_us()
  int delayed_queries = 0;
  int graph = 0;  // that it was captured in
  bool timed = true;
  bool recorded = false;
};

// Throws, and ends the capture, where the stream is being captured: no thread may wait for it or ask it.
void refuse_captured(const Stream& stream, std::string_view what);

// The clock of all devices: the host's monotonic one. An operation begins when it is handed over and its stream is
// free, and takes a microsecond, or as long as the host computes it.
double now_us();

// The calling thread's device, and its stream on each device.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);

// Another current device for as long as it lives.
class OnDevice {
 public:
  explicit OnDevice(c10::DeviceIndex device) : before_(current_device()) { set_current_device(device); }
  ~OnDevice() { set_current_device(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  c10::DeviceIndex before_;
};

class Streams {
 public:
  Stream& of(c10::Stream handle);
  Stream& at(std::size_t index) { return *all_[index]; }
  Stream& current(c10::DeviceIndex device);
  c10::Stream exchange_current(c10::Stream stream);
  // CUDA's pools have 32 streams for each priority, handed out in turn.
  c10::Stream from_pool(c10::DeviceIndex device, bool high_priority);
  // Streams of the CUDA runtime.
  Stream& create(c10::DeviceIndex device);
  void destroy(Stream& stream);
  // nullptr for a default stream.
  void* native(c10::Stream handle);
  Stream& from_native(void* stream);
  void for_each(c10::DeviceIndex device, const std::function<void(Stream&)>& visit);

  void record(Event& event, Stream& stream);
  void block(const Event& event, Stream& stream);
  bool query(Event& event);
  bool query(Stream& stream);
  // When the event fired; it has.
  static double time_us(const Event& event);
  // The host waits until all that is on the stream has ended. `what` names the call.
  void wait(Stream& stream, std::string_view what);
  void wait(Event& event);
  void wait(Stream& stream);
  void wait_for_device(c10::DeviceIndex device);
  // The host has seen that it has ended.
  void learn(const Clock& clock);
  const Clock& host() const { return host_; }

 private:
  bool answer(int& delayed_queries, const Clock& clock);
  void wait(const Clock& clock, c10::DeviceIndex device, std::string_view what);

  std::vector<std::unique_ptr<Stream>> all_;
  std::array<std::array<int, 2>, kMaxDevices> handed_out_{};
  Clock host_;
  c10::StreamId created_ = 0;
};

}  // namespace dtrain::test::fake_gpu
