// Records of steps whose work continues after their code has ended: a GPU is some batches behind its host. The records
// of a step are held until the device has done the step, and are passed on in the order of the steps.
//
// With a DeviceTimeline a step's phases are those of the device. The host marks the places in the device's work at
// which a phase begins that the device takes part in: to_device, forward, backward, the rest of train_batch, graph,
// allreduce_wait, optimizer_step. The time between two marks belongs to the phase that the first one begins. In the
// remaining time (the device has finished its work) the device waits for the host: that time belongs to the phases of
// the host in it (dataloader_next, callbacks, validation, …), and any rest to `other`. So the phases of a step sum to
// its wall time on the device. The host's `other` ends no phase of the device: it lies between two phases.
//
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "dtrain/profile/recorder.h"
#include "ring.h"

namespace dtrain::profile {

class LateSteps {
 public:
  // `timeline`: null for the host's times. It outlives this object.
  explicit LateSteps(DeviceTimeline* timeline) : timeline_(timeline) {}

  // Times are `now` on the host's monotonic clock, in nanoseconds.
  void begin_step(std::int64_t batch);
  // Changes the phase: the host has been in `before` since `since_ns`, and goes on in `after`, which is `whose`.
  void change_phase(Phase before, std::int64_t since_ns, Phase after, PhaseOf whose, std::int64_t now_ns);
  void end_step(Phase last, std::int64_t since_ns, std::int64_t now_ns, const StepRecord& on_host);

  void add_loader(std::int64_t batch, const LoaderRecord& loader);
  void add_scope(std::int64_t batch, const ScopeRecord& scope);
  // `observer` sees the record when it is complete, if it is still the one that hand_on() names.
  void add_collective(std::int64_t batch, LateCollective collective, StepObserver* observer);

  using Write = std::function<void(const Record&)>;
  // Passes on the records of all steps that the device has done. Never waits. True: none is left.
  bool hand_on(StepObserver* observer, const Write& write);
  // Passes on all other records, with the host's times; collectives that are not complete are left out.
  void give_up(const Write& write);

 private:
  struct Mark {
    Phase phase;  // the phase that begins here; kOther: the device waits for the host
  };
  struct HostSpan {
    std::size_t mark = 0;  // the mark before it
    Phase phase = Phase::kOther;
    std::int64_t begin_ns = 0, end_ns = 0;
  };
  struct Collective {
    std::size_t mark = 0;
    LateCollective poll;
    std::optional<CollectiveRecord> record;
    StepObserver* observer = nullptr;
  };
  struct Step {
    std::int64_t batch = 0;
    std::vector<Mark> marks;  // the last mark of a step that has ended is its end
    std::vector<HostSpan> spans;
    std::vector<LoaderRecord> loaders;
    std::vector<ScopeRecord> scopes;  // with the host's times
    std::vector<Collective> collectives;
    std::optional<StepRecord> on_host;  // none: the step was not ended
  };

  void mark(Phase phase);
  void leave(Phase phase, std::int64_t since_ns, std::int64_t now_ns);
  Step& open_step(std::int64_t batch);
  static bool collectives_complete(Step& step);
  void write_step(Step& step, const std::vector<std::int64_t>& times, StepObserver* observer, const Write& write);

  DeviceTimeline* const timeline_;
  std::deque<Step> steps_;  // oldest first
  bool in_step_ = false;    // the last step has not ended
  std::vector<std::int64_t> times_;
};

}  // namespace dtrain::profile
