// CUDA graphs: operations of a GPU that are recorded once and launched together any number of times.
//
// libtorch's class for graphs needs CUDA headers, so the code that uses it is a separate library, opened on demand.
#pragma once

#include <atomic>
#include <memory>

namespace dtrain::train {

// One CUDA graph. Work on the current stream between begin_capture() and end_capture() is recorded and does not run;
// replay() runs all of it on the current stream.
//
// During the capture the host must not wait for the device or query it: such a call is an error and ends the capture.
// Threads that work on the same stream (libtorch's for backward) are part of the capture; other threads may query other
// streams and events. Memory that is allocated during the capture belongs to the graph: it keeps its address, and has
// no other use until the graph is destroyed. Random numbers of the device's default generator are new at each replay.
//
// One thread begins, ends and replays. Errors of CUDA are c10::Error. A graph with NCCL operations must be destroyed
// before their communicator: NCCL ends a communicator, also by an abort, only when no such graph is left.
class DeviceGraph {
 public:
  // Ends a capture that end_capture() has not ended, and discards it.
  virtual ~DeviceGraph() = default;

  // Begins the capture of the calling thread's current stream, which is not the default stream. Once per object.
  virtual void begin_capture() = 0;
  // Called on the same thread, with the same current stream. c10::Error if work since begin_capture() cannot be
  // captured; libtorch then works as before the capture, and the object must be destroyed.
  virtual void end_capture() = 0;
  // Launches the graph on the current stream; nothing waits.
  virtual void replay() = 0;
};

// Opens the library and makes a graph. ConfigError names the missing part. The process must have opened libtorch's CUDA
// part (open_device()).
std::unique_ptr<DeviceGraph> make_device_graph();

// The interface between the library train and the module cuda_graph. Raise the version with every change to
// DeviceGraph, so that a module of another build is refused instead of called.
inline constexpr int kDeviceGraphAbi = 1;
inline constexpr const char* kDeviceGraphFactory = "dtrain_cuda_graph_make";

// Sets `made` and returns 0, or returns the version for which the module was built.
using DeviceGraphFactory = int(int abi, std::unique_ptr<DeviceGraph>& made);

// Tells code whose effects a CUDA graph would not repeat that this process is capturing one (step/step_graph.h). Any
// thread, because libtorch runs backward on another thread.
inline std::atomic<bool> capturing_graph{false};

// Sets capturing_graph for the duration of a capture.
class CaptureState {
 public:
  CaptureState() { capturing_graph = true; }
  ~CaptureState() { capturing_graph = false; }
  CaptureState& operator=(CaptureState&&) = delete;
};

}  // namespace dtrain::train
