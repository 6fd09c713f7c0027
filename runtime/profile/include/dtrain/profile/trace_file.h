// The deep window: which batches are traced in full, what the recorder keeps of them, and the file
// profile/trace-rank-NNNN.json.gz with the events that libtorch's profiler and the recorder saw on one rank, as Chrome
// trace JSON. docs/traces.md describes its tracks and its "dtrain" object. Plain values and functions; classes are for
// one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/profile/recorder.h"

namespace dtrain::profile {

// The batches that are traced in full (the deep window). All ranks receive a new window in the same round, so at each
// batch they have the same windows and trace the same batches.
struct TraceWindow {
  std::int64_t first_batch = 0;  // a rank's batches count from 1
  std::int64_t last_batch = 0;   // included
  bool kernels_alone = false;    // only the kernels of GPUs are timed, and there is no trace
  bool operator==(const TraceWindow&) const = default;
};

class TraceSchedule {
 public:
  void add(const TraceWindow& window);
  // Returns the window that contains a batch.
  std::optional<TraceWindow> at(std::int64_t batch) const;
  // Returns a window that shares batches with `window`.
  std::optional<TraceWindow> overlapping(const TraceWindow& window) const;

 private:
  std::vector<TraceWindow> windows_;
};

// The recorder's events in memory while a deep window is open. The training thread fills it; afterwards it is written
// to the trace file. It holds a limited number of entries; further ones are only counted.
class TraceLog final : public StepObserver {
 public:
  struct PhaseSpan {
    Phase phase;
    std::int64_t start_ns, end_ns;
  };
  struct StepSpan {
    std::int64_t batch, start_ns, end_ns;
  };
  struct ScopeSpan {
    std::string path;
    std::int64_t start_ns, end_ns;
  };
  static constexpr std::size_t kMostSpans = 200'000;  // of each kind

  void on_phase(Phase phase, std::int64_t start_ns, std::int64_t end_ns) override {
    if (end_ns > start_ns) keep(phases_, {phase, start_ns, end_ns});
  }
  void on_scope(std::string_view path, std::int64_t start_ns, std::int64_t end_ns) override {
    keep(scopes_, {std::string(path), start_ns, end_ns});
  }
  void on_step(std::int64_t batch, std::int64_t start_ns, std::int64_t end_ns) override {
    keep(steps_, {batch, start_ns, end_ns});
  }
  void on_collective(std::int64_t batch, const CollectiveRecord& collective) override {
    keep(collectives_, {batch, collective});
  }

  const std::vector<PhaseSpan>& phases() const { return phases_; }
  const std::vector<ScopeSpan>& scopes() const { return scopes_; }
  const std::vector<StepSpan>& steps() const { return steps_; }
  const std::vector<std::pair<std::int64_t, CollectiveRecord>>& collectives() const { return collectives_; }
  std::int64_t left_out() const { return left_out_; }

 private:
  template <typename T>
  void keep(std::vector<T>& list, T entry) {
    if (list.size() < kMostSpans) {
      list.push_back(std::move(entry));
    } else {
      ++left_out_;
    }
  }

  std::vector<PhaseSpan> phases_;
  std::vector<ScopeSpan> scopes_;
  std::vector<StepSpan> steps_;
  std::vector<std::pair<std::int64_t, CollectiveRecord>> collectives_;
  std::int64_t left_out_ = 0;
};

// Steps, phases, scopes and collectives as events of Chrome trace JSON: one track for the steps, one for the phases,
// one for the scopes, and for the collectives as many as run at the same time.
struct TraceEventSink {
  std::int64_t pid = 0;                              // of the process that owns the tracks
  std::function<double(std::int64_t)> to_us;         // from the monotonic clock, in nanoseconds, to the file's
  std::function<void(std::string_view text)> write;  // events, each with a comma and a newline behind it
};

// The place of a collective in the trace, for arrows to it.
struct PlacedCollective {
  std::int64_t batch = 0;
  std::uint64_t sequence = 0;
  std::string operation;
  std::int64_t track = 0;
  double came_us = 0;  // the time at which it was issued
  double start_us = 0, end_us = 0;
};

std::vector<PlacedCollective> write_trace_events(const TraceLog& log, const TraceEventSink& sink);

inline constexpr int kTraceSchema = 1;

// The same moment on the profiler's clock and on the host's monotonic one, which the recorder uses.
struct TraceClockPoint {
  std::int64_t trace_ns = 0, monotonic_ns = 0;
  std::int64_t error_ns = 0;
};

struct TraceFacts {
  int rank = 0, world_size = 1;
  std::int64_t pid = 0;  // as the profiler names the process
  std::string host;
  std::string reason;                  // "configured" or "requested"
  TraceWindow window;                  // the batches to trace
  std::int64_t last_batch = 0;         // the last batch that was traced
  std::string cut;                     // the reason for which the window ended earlier; empty: it did not
  std::string missing;                 // events that the profiler did not record, and why; empty: none
  std::int64_t operators = 0;          // number of operators that the profiler recorded
  std::vector<TraceClockPoint> clock;  // at least one, ascending
};

// `raw` is the file that libtorch's profiler has written; it is read in pieces. Returns the size of `path`. DataError
// if `raw` is incomplete.
std::uintmax_t write_trace_file(const std::filesystem::path& raw, const TraceLog& log, const TraceFacts& facts,
                                const std::filesystem::path& path);

// "trace-rank-0003.json.gz"; of later windows "trace-rank-0003.2.json.gz" and so on.
std::string trace_file_name(int rank, int number);

}  // namespace dtrain::profile
