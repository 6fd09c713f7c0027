// profile/trace-rank-NNNN.json.gz: the events that libtorch's profiler and the recorder saw on one rank in a deep
// window, as Chrome trace JSON. docs/traces.md describes its tracks and its "dtrain" object. Plain functions, any
// thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/profile/trace_log.h"
#include "dtrain/profile/trace_window.h"

namespace dtrain::profile {

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
