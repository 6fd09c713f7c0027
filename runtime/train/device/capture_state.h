// Whether this process is capturing a CUDA graph (graph/step_graph.h), for code that does what a graph would not
// repeat. Any thread: libtorch runs backward on another one.
#pragma once

#include <atomic>

namespace dtrain::train {

inline std::atomic<bool> capturing_graph{false};

// Spans a capture.
class CaptureState {
 public:
  CaptureState() { capturing_graph = true; }
  ~CaptureState() { capturing_graph = false; }
  CaptureState(const CaptureState&) = delete;
  CaptureState& operator=(const CaptureState&) = delete;
};

}  // namespace dtrain::train
