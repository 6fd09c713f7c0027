#include "harness/fake_cuda.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <utility>

namespace dtrain::test {

void Complaints::add(const std::string& text) {
  const std::scoped_lock lock(mutex_);
  texts_.push_back(text);
}

std::vector<std::string> Complaints::take() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(texts_, {});
}

FakeStream::~FakeStream() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FakeStream::push(std::function<void()> task) {
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void FakeStream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

FakeCuda::~FakeCuda() {
  ending_ = true;
  streams_.clear();
  destroyed_.clear();
  for (const auto& [data, memory] : memory_) std::free(const_cast<std::byte*>(data));
}

void* FakeCuda::allocate(std::size_t bytes, cudaMemoryType type) {
  const std::size_t size = (bytes + 511) / 512 * 512;
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(512, size));
  std::memset(data, 0xAB, size);  // the GPU clears nothing
  const std::scoped_lock lock(mutex_);
  memory_[data] = {bytes, type};
  return data;
}

cudaError_t FakeCuda::free(void* data, cudaMemoryType type) {
  if (!data) return cudaSuccess;
  synchronize();
  {
    const std::scoped_lock lock(mutex_);
    const auto found = memory_.find(static_cast<std::byte*>(data));
    if (found == memory_.end() || found->second.type != type) {
      complaints_.add("memory is freed that was not allocated so, or was freed before");
      return cudaErrorInvalidValue;
    }
    if (found->second.used != 0) complaints_.add("memory is freed while it is registered or in use");
    memory_.erase(found);
  }
  std::free(data);
  return cudaSuccess;
}

void FakeCuda::synchronize() {
  std::vector<std::future<void>> reached;
  {
    const std::scoped_lock lock(mutex_);
    const auto mark = [&](FakeStream& stream) {
      const auto here = std::make_shared<std::promise<void>>();
      reached.push_back(here->get_future());
      stream.push([here] { here->set_value(); });
    };
    for (const auto& [handle, stream] : streams_) mark(*stream);
    for (const auto& stream : destroyed_) mark(*stream);
  }
  for (const auto& one : reached) one.wait();
}

std::map<const std::byte*, FakeCuda::Memory>::iterator FakeCuda::find(const void* data, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(data);
  auto found = memory_.upper_bound(first);
  if (found == memory_.begin()) return memory_.end();
  --found;
  return first + bytes <= found->first + found->second.bytes ? found : memory_.end();
}

bool FakeCuda::use_device(const void* data, std::size_t bytes, int use, const char* what) {
  if (bytes == 0) return true;
  const std::scoped_lock lock(mutex_);
  const auto found = find(data, bytes);
  if (found == memory_.end() || found->second.type != cudaMemoryTypeDevice) {
    complaints_.add(std::string(what) + " is given memory that is not the GPU's, or more than was allocated");
    return false;
  }
  found->second.used += use;
  return true;
}

void FakeCuda::pin(void* data, int by) {
  static_cast<void>(use_device(data, 1, by, "a registration"));
}

FakeStream* FakeCuda::stream(cudaStream_t handle) {
  const std::scoped_lock lock(mutex_);
  const auto found = streams_.find(handle);
  if (found != streams_.end()) return found->second.get();
  complaints_.add("a stream is used that does not exist");
  return nullptr;
}

cudaStream_t FakeCuda::make_stream() {
  const std::scoped_lock lock(mutex_);
  const auto handle = reinterpret_cast<cudaStream_t>(next_++);
  streams_[handle] = std::make_unique<FakeStream>();
  return handle;
}

void FakeCuda::set_launching(cudaStream_t stream, bool launching) {
  const std::scoped_lock lock(mutex_);
  if (launching) {
    launching_.insert(stream);
  } else {
    launching_.erase(stream);
  }
}

cudaError_t FakeCuda::record(cudaEvent_t event, cudaStream_t on) {
  FakeStream* const target = stream(on);
  const std::scoped_lock lock(mutex_);
  const auto found = events_.find(event);
  if (!target || found == events_.end()) {
    complaints_.add("an event is recorded that does not exist");
    return cudaErrorInvalidResourceHandle;
  }
  if (launching_.count(on) != 0) complaints_.add("an event is recorded before the launch in front of it is done");
  marks_.erase(event);
  if (capture_ && capture_->given.count(on) != 0) {
    if (!capture_->valid) return cudaErrorStreamCaptureInvalidated;
    marks_[event] = {on, capture_->given[on]};
    return cudaSuccess;
  }
  found->second = std::make_shared<Firing>();
  target->push([this, firing = found->second] {
    firing->time = std::chrono::steady_clock::now();
    {
      const std::scoped_lock own(mutex_);
      fired_.push_back(firing->time);
    }
    firing->fired = true;
  });
  return cudaSuccess;
}

std::vector<std::chrono::steady_clock::time_point> FakeCuda::fired() {
  const std::scoped_lock lock(mutex_);
  return fired_;
}

cudaError_t FakeCuda::query(cudaEvent_t event) {
  if (query_error != cudaSuccess) return query_error;
  const std::scoped_lock lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) {
    complaints_.add("an event is asked for that does not exist");
    return cudaErrorInvalidResourceHandle;
  }
  if (marks_.count(event) != 0) {
    complaints_.add("an event is asked for that was recorded in a capture");
    return cudaErrorCapturedEvent;
  }
  if (capture_ && capture_->thread == std::this_thread::get_id()) {
    complaints_.add("an event is asked for by the thread of a capture");
    capture_->valid = false;
    return cudaErrorStreamCaptureUnsupported;
  }
  if (events_never_fire) return cudaErrorNotReady;
  return !found->second || found->second->fired ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t FakeCuda::elapsed(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const std::scoped_lock lock(mutex_);
  const auto first = events_.find(from);
  const auto second = events_.find(to);
  if (first == events_.end() || second == events_.end() || !first->second || !second->second) {
    complaints_.add("the time between events that were never recorded is asked for");
    return cudaErrorInvalidResourceHandle;
  }
  if (!first->second->fired || !second->second->fired) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(second->second->time - first->second->time).count();
  return cudaSuccess;
}

cudaError_t FakeCuda::wait_event(cudaStream_t on, cudaEvent_t event) {
  FakeStream* const target = stream(on);
  const std::scoped_lock lock(mutex_);
  const auto found = events_.find(event);
  if (!target || found == events_.end()) return cudaErrorInvalidResourceHandle;
  if (const auto mark = marks_.find(event); mark != marks_.end()) return wait_captured(on, mark->second);
  if (capture_ && capture_->given.count(on) != 0) {
    complaints_.add("a stream that is captured waits for what is not");
    capture_->valid = false;
    return cudaErrorStreamCaptureIsolation;
  }
  target->push([this, fired = found->second] {
    while (fired && !fired->fired && !ending_) std::this_thread::sleep_for(std::chrono::microseconds(20));
  });
  return cudaSuccess;
}

cudaError_t FakeCuda::wait_captured(cudaStream_t on, const Mark& mark) {
  if (!capture_) {
    complaints_.add("a stream waits for an event of a capture that has ended");
    return cudaErrorCapturedEvent;
  }
  capture_->given.try_emplace(on, 0);
  if (on == capture_->origin) capture_->joined[mark.stream] = std::max(capture_->joined[mark.stream], mark.given);
  return cudaSuccess;
}

void FakeCuda::begin_capture(cudaStream_t on) {
  const std::scoped_lock lock(mutex_);
  if (capture_) complaints_.add("a capture begins while another one is under way");
  capture_ = Capture{.origin = on, .thread = std::this_thread::get_id(), .given = {{on, 0}}, .joined = {}, .steps = {}};
}

int FakeCuda::end_capture() {
  const std::scoped_lock lock(mutex_);
  Capture capture = *std::exchange(capture_, std::nullopt);
  for (const auto& [stream, given] : capture.given) {
    if (stream != capture.origin && capture.joined[stream] < given) capture.valid = false;
  }
  if (!capture.valid) return -1;
  graphs_.push_back(std::move(capture.steps));
  return static_cast<int>(graphs_.size()) - 1;
}

bool FakeCuda::is_captured(cudaStream_t on) {
  const std::scoped_lock lock(mutex_);
  return capture_ && capture_->given.count(on) != 0;
}

void FakeCuda::capture(cudaStream_t on, Prepare prepare) {
  const std::scoped_lock lock(mutex_);
  ++capture_->given[on];
  capture_->steps.push_back(std::move(prepare));
}

void FakeCuda::replay(int graph, cudaStream_t on) {
  std::vector<Prepare> steps;
  {
    const std::scoped_lock lock(mutex_);
    steps = graphs_.at(static_cast<std::size_t>(graph));
  }
  std::vector<Task> tasks;
  for (const Prepare& prepare : steps) tasks.push_back(prepare());
  stream(on)->push([tasks] {
    for (const Task& task : tasks) task();
  });
}

cudaError_t FakeCuda::copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t on) {
  FakeStream* const target = stream(on);
  if (!target) return cudaErrorInvalidResourceHandle;
  if (is_captured(on)) complaints_.add("a copy is captured, which this fake cannot");
  const bool up = kind == cudaMemcpyHostToDevice;
  {
    const std::scoped_lock lock(mutex_);
    const auto host = find(up ? from : to, bytes);
    const auto device = find(up ? to : from, bytes);
    if (host == memory_.end() || host->second.type != cudaMemoryTypeHost || device == memory_.end() ||
        device->second.type != cudaMemoryTypeDevice) {
      complaints_.add("an asynchronous copy is not between pinned and GPU memory");
      return cudaErrorInvalidValue;
    }
  }
  target->push([to, from, bytes] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

void FakeCuda::complain_about_leaks() {
  const std::scoped_lock lock(mutex_);
  if (!memory_.empty()) complaints_.add(std::to_string(memory_.size()) + " pieces of memory were never freed");
  if (!streams_.empty()) complaints_.add(std::to_string(streams_.size()) + " streams were never destroyed");
  if (!events_.empty()) complaints_.add(std::to_string(events_.size()) + " events were never destroyed");
}

void FakeCuda::fill(comm::NcclApi& api) {
  api.cudaGetErrorString = [](cudaError_t error) {
    return error == cudaErrorLaunchFailure ? "unspecified launch failure"
           : error == cudaErrorNoDevice    ? "no CUDA-capable device is detected"
                                           : "an error of the fake";
  };
  api.cudaGetDeviceCount = [this](int* count) {
    *count = devices;
    return devices > 0 ? cudaSuccess : cudaErrorNoDevice;
  };
  api.cudaGetDevice = [](int* device) { return *device = 0, cudaSuccess; };
  api.cudaSetDevice = [this](int device) { return device < devices ? cudaSuccess : cudaErrorInvalidDevice; };
  api.cudaPointerGetAttributes = [this](cudaPointerAttributes* attributes, const void* data) {
    const std::scoped_lock lock(mutex_);
    const auto found = find(data, 1);
    attributes->type = found == memory_.end() ? cudaMemoryTypeUnregistered : found->second.type;
    return cudaSuccess;
  };
  api.cudaDeviceGetStreamPriorityRange = [](int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  };
  api.cudaStreamCreateWithPriority = [this](cudaStream_t* made, unsigned int flags, int priority) {
    if (flags != cudaStreamNonBlocking || priority != -5) complaints_.add("the stream is not one of high priority");
    *made = make_stream();
    return cudaSuccess;
  };
  api.cudaStreamDestroy = [this](cudaStream_t handle) {
    const std::scoped_lock lock(mutex_);
    const auto found = streams_.extract(handle);
    if (!found) {
      complaints_.add("a stream is destroyed that does not exist");
      return cudaErrorInvalidResourceHandle;
    }
    destroyed_.push_back(std::move(found.mapped()));  // as CUDA: it still does what it was given
    return cudaSuccess;
  };
  api.cudaStreamWaitEvent = [this](cudaStream_t on, cudaEvent_t event, unsigned int) { return wait_event(on, event); };
  api.cudaEventCreateWithFlags = [this](cudaEvent_t* made, unsigned int) {
    const std::scoped_lock lock(mutex_);
    *made = reinterpret_cast<cudaEvent_t>(next_++);
    events_[*made] = nullptr;
    return cudaSuccess;
  };
  api.cudaEventDestroy = [this](cudaEvent_t event) {
    const std::scoped_lock lock(mutex_);
    if (events_.erase(event) == 0) complaints_.add("an event is destroyed that does not exist");
    return cudaSuccess;
  };
  api.cudaEventRecord = [this](cudaEvent_t event, cudaStream_t on) { return record(event, on); };
  api.cudaEventQuery = [this](cudaEvent_t event) { return query(event); };
  api.cudaEventElapsedTime = [this](float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    return elapsed(milliseconds, from, to);
  };
  api.cudaMemcpyAsync = [this](void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t on) {
    return copy(to, from, bytes, kind, on);
  };
  api.cudaMemsetAsync = [this](void* data, int value, std::size_t bytes, cudaStream_t on) {
    FakeStream* const target = stream(on);
    if (!target || !use_device(data, bytes, 0, "cudaMemsetAsync")) return cudaErrorInvalidValue;
    target->push([data, value, bytes] { std::memset(data, value, bytes); });
    return cudaSuccess;
  };
  api.cudaMalloc = [this](void** data, std::size_t bytes) {
    *data = allocate(bytes, cudaMemoryTypeDevice);
    return cudaSuccess;
  };
  api.cudaFree = [this](void* data) { return free(data, cudaMemoryTypeDevice); };
  api.cudaHostAlloc = [this](void** data, std::size_t bytes, unsigned int) {
    *data = allocate(bytes, cudaMemoryTypeHost);
    return cudaSuccess;
  };
  api.cudaFreeHost = [this](void* data) { return free(data, cudaMemoryTypeHost); };
}

}  // namespace dtrain::test
