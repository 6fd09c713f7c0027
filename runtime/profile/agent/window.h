// The sums of a dump window: what a `window` record of docs/profile-format.md holds. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "agent/format.h"
#include "dtrain/profile/sketch.h"
#include "ring.h"

namespace dtrain::profile {

class DumpWindow {
 public:
  // Adds a step, collective or loader record; ignores others.
  void add(const Record& record);

  // What the window is made of, beside the records that were added.
  struct Frame {
    std::int64_t first_batch = 0, last_batch = 0, epoch = 0, start_ns = 0, end_ns = 0;
    std::int64_t outliers = 0, outliers_folded = 0;
  };
  void append_line(LineBuffer& out, const Frame& frame) const;

 private:
  struct CollectiveKey {
    std::string operation;
    std::int32_t bucket = -1, world_size = 1;
    bool operator<(const CollectiveKey& other) const {
      return std::tie(operation, bucket, world_size) < std::tie(other.operation, other.bucket, other.world_size);
    }
  };
  struct CollectiveSums {
    std::int64_t bytes = 0;
    std::uint64_t first_sequence = 0, last_sequence = 0;
    Sketch duration_ns, exposed_ns, queued_ns;
  };
  struct LoaderSums {
    std::int32_t workers = 0;
    bool pinned = false;
    Sketch queue_depth, fetch_ns;
  };
  void add_step(const StepPayload& step);
  void add_collective(const CollectiveRecord& collective);

  std::int64_t exchanged_ = 0, samples_ = 0;
  Sketch wall_ns_;
  double mean_ns_ = 0, m2_ = 0;  // Welford's running mean and sum of squared differences from it
  std::array<Sketch, kPhaseCount> phases_;
  std::map<CollectiveKey, CollectiveSums> collectives_;
  LoaderSums loader_;
};

}  // namespace dtrain::profile
