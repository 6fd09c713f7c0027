// Compares the monotonic clocks of two hosts by messages there and back: rank 0's time was read some time between our
// question and its answer, so the middle of the two is wrong by half of the round trip at most. The shortest of a few
// round trips counts: with it the bound is the tightest (Cristian: "Probabilistic clock synchronization", Distributed
// Computing 3, 1989). Control thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "dtrain/base/json.h"
#include "dtrain/base/time_namespace.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

class ClockProbe {
 public:
  using Time = std::chrono::nanoseconds;  // of a monotonic clock
  static constexpr int kRoundTrips = 16;

  void start();
  bool running() const { return left_ > 0; }
  // Returns the next question, which the caller sends at once.
  Json question(Time now);
  // Takes rank 0's answer, which came at `now`. Ignores the answer to another question; DataError when it is no answer.
  struct Next {
    bool ask = false;                   // the next question
    std::optional<ClockOffset> result;  // after the last
  };
  Next answer(const Json& message, Time now);

 private:
  std::int64_t id_ = 0;
  int left_ = 0;
  Time asked_{0};
  std::optional<ClockOffset> best_;
};

// Converts a time of this process's clock to the clock of its machine, which records use, in any time namespace.
inline ClockProbe::Time on_host_clock(std::chrono::steady_clock::time_point time) {
  return time.time_since_epoch() - monotonic_offset();
}

// Returns rank 0's answer to a question.
Json clock_answer(const Json& question, ClockProbe::Time now);

}  // namespace dtrain::comm
