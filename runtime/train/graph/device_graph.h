// CUDA graphs: operations of a GPU that are recorded once, and launched again as one.
//
// libtorch's class for them needs headers of CUDA, so its user is a library of its own, which is opened on demand.
#pragma once

#include <memory>

namespace dtrain::train {

// One CUDA graph: what the current stream is given between begin_capture() and end_capture() is recorded and does not
// run; replay() runs all of it on the current stream.
//
// In between the host must not wait for the device, nor ask it: such a call is an error and ends the capture. Threads
// that work on the same stream (libtorch's for backward) are part of the capture; others may go on asking about streams
// and events of their own. What is allocated in between lies in memory of the graph's own; it keeps its address, and
// serves nothing else before the graph is destroyed. Random numbers of the device's default generator are new at each
// replay.
//
// One thread begins, ends and replays. Errors of CUDA are c10::Error. A graph that has operations of NCCL in it must be
// destroyed before their communicator: NCCL ends a communicator, also by an abort, only when no such graph is left.
class DeviceGraph {
 public:
  // Also where a capture was never ended: it ends here, and nothing was recorded.
  virtual ~DeviceGraph() = default;

  // Of the calling thread's current stream, which is not the default stream. At most one capture for each object.
  virtual void begin_capture() = 0;
  // On the same thread, with the same current stream. c10::Error where something in between cannot be captured;
  // libtorch goes on as before the capture, and the object must be thrown away.
  virtual void end_capture() = 0;
  // On the current stream; nothing waits.
  virtual void replay() = 0;
};

// Opens the library. ConfigError says what is missing. The process must have opened libtorch's CUDA part
// (open_device()).
std::unique_ptr<DeviceGraph> make_device_graph();

}  // namespace dtrain::train
