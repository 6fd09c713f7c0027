// Records the work of one rank, into a ring in memory shared with the monitor. Recording formats nothing, makes
// no system call, and takes no lock except malloc's, twice a second. If the ring is full, the record is dropped, and
// the dump counts it.
//
// Only the training thread calls it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/profile/records.h"

namespace dtrain::profile {

// The times at which a device reaches marks that the recorder sets in its work. The training thread calls it.
class DeviceTimeline {
 public:
  virtual ~DeviceTimeline() = default;
  // Sets a mark behind all work that the thread has issued to its device so far.
  virtual void mark() = 0;
  // Appends when the device reached each of the `count` oldest marks, in nanoseconds of the host's monotonic clock, and
  // removes these marks. The times never decrease, also from one call to the next. Returns false and does nothing while
  // the device has not reached all of them. Never waits.
  virtual bool take(std::size_t count, std::vector<std::int64_t>& times) = 0;
};

// Reports to a recorder how much device memory the rank uses. The training thread calls it at changes of phase, in some
// of the steps.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  struct Reading {
    std::int64_t allocated = 0;  // bytes in tensors
    std::int64_t reserved = 0;   // bytes taken from the device, for these tensors and for later ones
    std::int64_t peak = 0;       // the most that was allocated since the last call
  };
  virtual Reading take() = 0;
  virtual int device() const = 0;  // its number
};

// Receives every phase, scope, step and collective while a deep window is open, with the moments at which each phase
// began and ended; dumps only have sums of these times. The training thread calls it at every change of phase, so it
// must be quick.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // Times are the host's monotonic clock, in nanoseconds.
  virtual void on_phase(Phase phase, std::int64_t start_ns, std::int64_t end_ns) = 0;
  // Receives a scope of the trial when it ends (scope.h).
  virtual void on_scope(std::string_view path, std::int64_t start_ns, std::int64_t end_ns) = 0;
  virtual void on_step(std::int64_t batch, std::int64_t start_ns, std::int64_t end_ns) = 0;
  virtual void on_collective(std::int64_t batch, const CollectiveRecord& collective) = 0;
};

class ScopeTable;

// A collective that may not have ended yet. Returns its record once it has. Never waits.
using LateCollective = std::function<std::optional<CollectiveRecord>()>;

// The devices that spend the time of a phase: both the host and its device, or only the host.
enum class PhaseOf : std::uint8_t { kHostAndDevice, kHost };

// The parts of a run outside its steps.
enum class RunMark : std::uint8_t { kInitializationEnd, kLoopEnd, kFinalizationEnd };

class Recorder {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    std::string monitor_socket;  // empty: record nothing (and cost nothing)
    std::chrono::milliseconds connect_timeout{10'000};
    Json header;  // run id, versions, …: copied into the first line of the dump
    std::size_t ring_bytes = 4u << 20;
  };
  // Connects to the monitor of this host and passes it the ring. If the monitor does not exist or does not answer
  // within `connect_timeout`, goes on without it (see monitor_is_here()). Time since `process_start` counts as
  // initialization. CommError if the monitor refuses this rank. The clock must outlive this.
  Recorder(const Options& options, const Clock& clock, Nanoseconds process_start);
  ~Recorder();
  Recorder& operator=(Recorder&&) = delete;

  bool enabled() const;

  // From the next begin_step() until resume(), nothing of a step is recorded or timed: neither its phases nor its
  // collectives nor its loader samples. Parts of the run are still recorded. bench_profile_overhead compares steps with
  // and without records.
  void pause();
  void resume();

  // Sets the observer of phases, steps and collectives; nullptr: none. Only between steps.
  void observe(StepObserver* observer);

  // Steps are the batches of this rank, from 1. begin_step() starts in Phase::kOther. A step that does not end has no
  // record.
  void begin_step(std::int64_t batch);
  // Closes the record: the phases sum to its wall time exactly.
  void end_step(const StepInfo& info);
  // Adds the time since the last change to the previous phase, begins `phase`, and returns the previous phase. Does
  // nothing outside a step. `whose` matters only while steps are held with a DeviceTimeline.
  Phase switch_to(Phase phase, PhaseOf whose = PhaseOf::kHostAndDevice);
  // While held, changes of phase are ignored and collectives are not recorded: a graph captures the work, which does
  // not run now.
  void hold_phase(bool hold);
  bool holds_phase() const;

  // Begins a scope: until it ends, its time also counts under this name, within the innermost open scope. end_step()
  // adds one record for each scope that was used in the step, whatever the number of calls, and ends scopes that are
  // still open. Outside a step, while paused and while a phase is held, scopes have no time. On a GPU it is the host's
  // time. Error if the name has other characters than letters, digits, '_', '-' and '.', or if there are more than
  // Scope::kMostPaths paths or Scope::kMostPathBytes characters in one; also if not enabled.
  Scope scope(std::string_view name);

  void collective(const CollectiveRecord& record);
  // Adds a collective of the current step. Only while steps are held.
  void collective_later(LateCollective collective);

  // Holds steps for a device that runs asynchronously. From now on the records of a step are held until its collectives
  // have ended. With a `timeline` they are also held until the device has finished the step; its times are then the
  // device's (late_steps.h). Without a `timeline` they are the host's. end_step() passes on the records that are
  // complete. The timeline must outlive its use. Only between steps.
  void hold_steps(DeviceTimeline* timeline);
  // Passes on the complete records without waiting. True: none is held any more.
  bool hand_on_steps();
  // Passes on all held records, with the host's times; collectives that have not ended are left out. From then on steps
  // are not held.
  void release_steps();

  void mark(RunMark mark);
  // Adds a record, at most one in a step; its time is now.
  void loader(LoaderRecord loader);
  // Records also while paused, and outside steps.
  void clock(const ClockRecord& offset);

  // From now on some steps (at most two a second) also record how much device memory their phases used. `memory` must
  // outlive this; nullptr: none. Only between steps.
  void watch(DeviceMemory* memory);

  // Waits until the monitor has written everything recorded so far to its file. CommError at the deadline, or if the
  // monitor has ended and is not back within 3 s. Records that could not be written (disk full) are no error here;
  // lost() counts them.
  void flush(std::chrono::milliseconds timeout);
  // Lines of this rank's dump that could not be written, as of the last flush().
  std::int64_t lost() const;

  // True if the monitor runs and has answered. If it has ended, this connects again to a monitor that listens under the
  // same name, after pauses that grow from 0.1 s to 30 s. Until then records stay in the ring; if the ring is full they
  // are dropped and counted. Cheap enough for every step: it looks once a second at most.
  bool monitor_is_here();
  // Returns the reason for which lines of a dump of this host could not be written, with the path. Only one rank of the
  // host gets this text. Once set it stays; the monitor goes on trying. As of the last monitor_is_here() or flush().
  const std::optional<std::string>& write_error() const;

 private:
  friend class Scope;
  void end_scope(std::uint64_t number);
  void end_innermost_scope(std::int64_t now_ns, const PhaseTimes& times);
  void write_scopes(std::int64_t now_ns);

  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::unique_ptr<ScopeTable> scopes_;
};

// Switches to a phase for the duration of a scope, then back. Scopes may nest; times stay exclusive.
class PhaseScope {
 public:
  PhaseScope(Recorder& recorder, Phase phase, PhaseOf whose = PhaseOf::kHostAndDevice)
      : recorder_(recorder), before_(recorder.switch_to(phase, whose)) {}
  // On a GPU a change of phase may throw because the device has failed. That is ignored here, because the code that
  // uses the device gets the same error.
  ~PhaseScope() {
    try {
      recorder_.switch_to(before_);
    } catch (const std::exception&) {
    }
  }
  PhaseScope& operator=(PhaseScope&&) = delete;

 private:
  Recorder& recorder_;
  Phase before_;
};

}  // namespace dtrain::profile
