// Reads a trace file (profile/trace-rank-NNNN.json.gz) event by event, without building a tree of values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/json.h"
#include "dtrain/profile/trace_file.h"

namespace dtrain::analysis {

// The values as in the file, strings with their quotes; empty: the event does not have the value. Valid until the next
// event is read.
struct RawEvent {
  std::string_view ph, category, name, pid, tid, ts, dur, id, args;
  std::string_view bp, s;  // of flows and instants

  double ts_us() const;
  double dur_us() const;
};

// Returns the text without its quotes; escapes stay as they are.
inline std::string_view unquoted(std::string_view text) {
  const bool quoted = text.size() >= 2 && text.front() == '"';
  return quoted ? text.substr(1, text.size() - 2) : text;
}

// Appends {…},
//  with the event's values, except that `pid`, `ts_us` and `id` replace its own. Omits the time if the event has none.
void append_event(fmt::memory_buffer& out, const RawEvent& event, std::int64_t pid, double ts_us, std::int64_t id);

struct TraceHead {
  int rank = -1;
  int world_size = 1;
  std::int64_t pid = 0;
  std::string host, cut, missing;
  std::int64_t first_batch = 0, last_batch = 0;
  std::int64_t base_ns = 0;  // the origin of the events' times, on the profiler's clock
  std::vector<profile::TraceClockPoint> clock;

  std::int64_t batches() const { return last_batch - first_batch + 1; }
  // Returns an event's time on the host's monotonic clock.
  double monotonic_ns(double ts_us) const;
  // Returns the largest error of monotonic_ns().
  std::int64_t error_ns() const;
};

// Reads the head of a trace without its events.
TraceHead read_trace_head(const std::filesystem::path& path);

class TraceReader {
 public:
  // Reads the whole file. DataError if it is damaged or not a trace of dtrain.
  explicit TraceReader(const std::filesystem::path& path);
  const TraceHead& head() const { return head_; }
  void each(const std::function<void(const RawEvent&)>& use);

 private:
  std::filesystem::path path_;
  TraceHead head_;
  std::string text_;  // with the padding simdjson wants
};

// Returns the trace files of a run, by rank, then in the order of writing.
std::vector<std::filesystem::path> trace_files(const std::filesystem::path& run_folder);

}  // namespace dtrain::analysis
