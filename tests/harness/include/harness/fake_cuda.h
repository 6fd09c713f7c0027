// A stand-in for the CUDA runtime, in host memory: streams are threads that really run behind, events really fire when
// a stream gets to them. It checks how it is used and keeps what it has to complain about.
//
// "Device" memory is what it handed out itself. All functions from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "nccl/nccl_api.h"

namespace dtrain::test {

class Complaints {
 public:
  void add(const std::string& text);
  std::vector<std::string> take();

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

// One stream: a thread that does what it is given, in order.
class FakeStream {
 public:
  FakeStream() : thread_([this] { run(); }) {}
  ~FakeStream();
  void push(std::function<void()> task);

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ending_ = false;
  std::thread thread_;
};

class FakeCuda {
 public:
  explicit FakeCuda(Complaints& complaints) : complaints_(complaints) {}
  ~FakeCuda();

  // Faults, set by tests.
  std::atomic<int> devices{1};
  std::atomic<bool> events_never_fire{false};
  std::atomic<cudaError_t> query_error{cudaSuccess};

  void fill(comm::NcclApi& api);

  void* allocate(std::size_t bytes, cudaMemoryType type);
  cudaError_t free(void* data, cudaMemoryType type);
  // Whether the whole range is device memory; complains where it is not. `use` +1 and -1: it may not be freed between.
  bool use_device(const void* data, std::size_t bytes, int use, const char* what);
  void pin(void* data, int by);  // a registration: as use_device, of a whole allocation

  FakeStream* stream(cudaStream_t handle);
  cudaStream_t make_stream();
  // Nothing may be recorded on a stream while a launch on it goes on in the background.
  void set_launching(cudaStream_t stream, bool launching);
  // When events have fired, on any stream: the device's times, in their order.
  std::vector<std::chrono::steady_clock::time_point> fired();
  void complain_about_leaks();

  // CUDA graphs, one capture at a time, in the mode cudaStreamCaptureModeThreadLocal. What the stream is given, and
  // those streams that wait for its events, becomes part of the graph.
  using Task = std::function<void()>;
  using Prepare = std::function<Task()>;  // called by each replay, on its thread: what the stream does then
  void begin_capture(cudaStream_t stream);
  // The graph; -1 where CUDA would refuse it: something is not joined, or was not allowed.
  int end_capture();
  void replay(int graph, cudaStream_t stream);
  bool is_captured(cudaStream_t stream);
  void capture(cudaStream_t stream, Prepare prepare);

 private:
  struct Capture {
    cudaStream_t origin;
    std::thread::id thread;
    std::map<cudaStream_t, int> given;   // to each stream of the capture: operations
    std::map<cudaStream_t, int> joined;  // how many of them the origin waits for
    std::vector<Prepare> steps;
    bool valid = true;
  };
  struct Mark {  // of an event that a capture has recorded
    cudaStream_t stream;
    int given;
  };
  struct Memory {
    std::size_t bytes;
    cudaMemoryType type;
    int used = 0;
  };
  struct Firing {
    std::atomic<bool> fired{false};
    std::chrono::steady_clock::time_point time;  // once fired
  };
  using Fired = std::shared_ptr<Firing>;

  // Waits for what all streams have been given, as freeing memory does.
  void synchronize();
  std::map<const std::byte*, Memory>::iterator find(const void* data, std::size_t bytes);
  cudaError_t record(cudaEvent_t event, cudaStream_t stream);
  cudaError_t query(cudaEvent_t event);
  cudaError_t elapsed(float* milliseconds, cudaEvent_t from, cudaEvent_t to);
  cudaError_t wait_event(cudaStream_t stream, cudaEvent_t event);
  cudaError_t wait_captured(cudaStream_t stream, const Mark& mark);
  cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);

  Complaints& complaints_;
  std::mutex mutex_;  // guards all below
  std::map<const std::byte*, Memory> memory_;
  std::map<cudaStream_t, std::unique_ptr<FakeStream>> streams_;
  std::vector<std::unique_ptr<FakeStream>> destroyed_;
  std::set<cudaStream_t> launching_;
  std::map<cudaEvent_t, Fired> events_;  // null: never recorded
  std::map<cudaEvent_t, Mark> marks_;    // of those that were recorded last in a capture
  std::optional<Capture> capture_;       // the one that is under way
  std::vector<std::vector<Prepare>> graphs_;
  std::vector<std::chrono::steady_clock::time_point> fired_;
  std::uintptr_t next_ = 0x1000;
  std::atomic<bool> ending_{false};
};

}  // namespace dtrain::test
