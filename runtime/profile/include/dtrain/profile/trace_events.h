// Steps, phases, scopes and collectives as events of Chrome trace JSON: one track for the steps, one for the phases,
// one for the scopes, and for the collectives as many as run at the same time. Plain function, any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/profile/trace_log.h"

namespace dtrain::profile {

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

}  // namespace dtrain::profile
