#include "streams.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "graph.h"
#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

constexpr int kPool = 32;
constexpr c10::StreamId kFirstCreated = 1000;  // after those of the pools

thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::array<c10::StreamId, kMaxDevices> streams_of_thread{};

c10::Stream handle_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, device), id);
}

void refuse_captured(const Event& event) {
  if (event.graph != 0)
    throw_cuda_error(907, "operation not permitted on an event last recorded in a capturing stream");
}

}  // namespace

std::string Stream::name() const {
  return "stream " + std::to_string(handle.id()) + " of cuda:" + std::to_string(handle.device_index());
}

void refuse_captured(const Stream& stream, std::string_view what) {
  if (stream.graph == nullptr) return;
  stream.graph->refuse(900, "operation not permitted when stream is capturing (" + std::string(what) + ")");
}

double now_us() {
  using std::chrono::steady_clock;
  return std::chrono::duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

c10::DeviceIndex current_device() {
  return device_of_thread;
}

void set_current_device(c10::DeviceIndex device) {
  if (device < 0 || device >= machine().devices) throw_cuda_error(101, "invalid device ordinal");
  device_of_thread = device;
}

Stream& Streams::of(c10::Stream handle) {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const auto& s) { return s->handle == handle; });
  if (found != all_.end()) return **found;
  all_.push_back(std::make_unique<Stream>(Stream{all_.size(), handle}));
  return *all_.back();
}

Stream& Streams::current(c10::DeviceIndex device) {
  return of(handle_of(device, streams_of_thread[device]));
}

c10::Stream Streams::exchange_current(c10::Stream stream) {
  return handle_of(stream.device_index(), std::exchange(streams_of_thread[stream.device_index()], stream.id()));
}

c10::Stream Streams::from_pool(c10::DeviceIndex device, bool high_priority) {
  const int in_turn = handed_out_[device][high_priority ? 1 : 0]++ % kPool;
  return handle_of(device, 1 + (high_priority ? kPool : 0) + in_turn);
}

Stream& Streams::create(c10::DeviceIndex device) {
  return of(handle_of(device, kFirstCreated + created_++));
}

void Streams::destroy(Stream& stream) {
  if (stream.handle.id() < kFirstCreated) throw_cuda_error(400, "invalid resource handle");
  stream.destroyed = true;  // what is on it goes on
}

void* Streams::native(c10::Stream handle) {
  return handle.id() == 0 ? nullptr : &of(handle);
}

Stream& Streams::from_native(void* stream) {
  if (stream == nullptr) return of(handle_of(current_device(), 0));
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const auto& s) { return s.get() == stream; });
  if (found == all_.end() || (*found)->destroyed) throw_cuda_error(400, "invalid resource handle");
  return **found;
}

void Streams::for_each(c10::DeviceIndex device, const std::function<void(Stream&)>& visit) {
  for (const auto& stream : all_) {
    if (stream->handle.device_index() == device) visit(*stream);
  }
}

void Streams::record(Event& event, Stream& stream) {
  machine().adversaries.check(stream.handle.device_index());
  if (stream.graph != nullptr) stream.graph->check_valid();
  if (stream.launching > 0) {
    machine().report.add("an event is recorded on " + stream.name() +
                         " while NCCL still launches operations there: ncclCommGetAsyncError says ncclInProgress");
  }
  event.recorded = true;
  event.clock = stream.clock;
  merge(event.clock, host_);
  event.microseconds = std::max(stream.microseconds, now_us());
  event.delayed_queries = machine().adversaries.delayed_queries;
  event.graph = stream.graph == nullptr ? 0 : stream.graph->number();
}

void Streams::block(const Event& event, Stream& stream) {
  machine().adversaries.check(stream.handle.device_index());
  Graph* const graph = event.graph == 0 ? nullptr : machine().graphs.capturing(event.graph);
  if (graph == nullptr) refuse_captured(event);
  if (graph == nullptr && stream.graph != nullptr) {
    stream.graph->refuse(905, "dependency created on uncaptured work in another stream");
  }
  if (graph != nullptr) graph->join(stream);
  merge(stream.clock, event.clock);
  stream.microseconds = std::max(stream.microseconds, event.microseconds);
}

bool Streams::answer(int& delayed_queries, const Clock& clock) {
  machine().graphs.refuse_host("a query");
  if (covers(host_, clock)) return true;
  machine().unfinished.advance();
  if (machine().unfinished.any(clock)) return false;
  if (delayed_queries > 0) {
    --delayed_queries;
    return false;
  }
  learn(clock);
  return true;
}

bool Streams::query(Event& event) {
  machine().adversaries.check(event.device);
  refuse_captured(event);
  return answer(event.delayed_queries, event.clock);
}

double Streams::time_us(const Event& event) {
  return std::max(event.microseconds, machine().unfinished.end_us(event.clock));
}

bool Streams::query(Stream& stream) {
  machine().adversaries.check(stream.handle.device_index());
  refuse_captured(stream, "a query");
  return answer(stream.delayed_queries, stream.clock);
}

void Streams::wait(const Clock& clock, c10::DeviceIndex device, std::string_view what) {
  machine().graphs.refuse_host(what);
  machine().report.count(&FakeGpuCounts::host_syncs);
  const Clock until = clock;  // other threads may launch more meanwhile
  machine().unfinished.wait(until, device);
  learn(until);
}

void Streams::wait(Stream& stream, std::string_view what) {
  refuse_captured(stream, what);
  wait(stream.clock, stream.handle.device_index(), what);
}

void Streams::wait(Event& event) {
  machine().adversaries.check(event.device);
  refuse_captured(event);
  wait(event.clock, event.device, "an event's synchronize()");
}

void Streams::wait(Stream& stream) {
  machine().adversaries.check(stream.handle.device_index());
  wait(stream, "a stream's synchronize()");
}

void Streams::wait_for_device(c10::DeviceIndex device) {
  machine().adversaries.check(device);
  Clock all;
  for_each(device, [&](const Stream& stream) {
    refuse_captured(stream, "a device's synchronize()");
    merge(all, stream.clock);
  });
  wait(all, device, "a device's synchronize()");
}

void Streams::learn(const Clock& clock) {
  merge(host_, clock);
  machine().transfers.complete(host_);
}

}  // namespace dtrain::test::fake_gpu
