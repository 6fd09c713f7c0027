// What a mode's step does on the device and on the host, apart, so that the device's part can be captured as a CUDA
// graph and launched again (graph/step_graph.h): between begin_capture() and end_capture() everything goes to the
// device and nothing of it is counted; for each launch the host's part comes before and after it. Training thread.
#pragma once

namespace dtrain::train {

class CapturableStep {
 public:
  virtual ~CapturableStep() = default;

  // Whether the next step with a batch on every rank gives the device the same work as every later one: nothing is
  // being tried any more. The ranks may disagree.
  virtual bool settled() = 0;

  // Around a batch whose work is captured. Error where the step does something that a graph would not repeat.
  virtual void begin_capture() = 0;
  virtual void end_capture() = 0;
  // Of the two, one has failed on some rank: nothing has happened.
  virtual void abandon_capture() = 0;

  // Whether the last step that was not a replay used the parameters that the captured one did. The same on all ranks.
  virtual bool is_as_captured() const = 0;
  // Around each launch of what was captured. Every rank has a batch, and what the ranks announced has been read.
  virtual void before_replay() = 0;
  virtual void after_replay() = 0;
};

}  // namespace dtrain::train
