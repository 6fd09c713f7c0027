// Tells code whose effects a CUDA graph would not repeat that this process is capturing one (graph/step_graph.h). Any
// thread, because libtorch runs backward on another thread.
#pragma once

#include <atomic>

namespace dtrain::train {

inline std::atomic<bool> capturing_graph{false};

// Sets capturing_graph for the duration of a capture.
class CaptureState {
 public:
  CaptureState() { capturing_graph = true; }
  ~CaptureState() { capturing_graph = false; }
  CaptureState(const CaptureState&) = delete;
  CaptureState& operator=(const CaptureState&) = delete;
};

}  // namespace dtrain::train
