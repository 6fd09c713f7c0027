// Determines the number of reading threads for `workers: auto`: as many as the training's rate needs and cores allow.
//
// The decision uses measured times: the training's time for a batch, without its waits for the loader, and the workers'
// time for a batch, in total and on a core. Workers that wait for storage need no core, so with a slow disk there may
// be more workers than cores. Only the training thread uses this class, which reads no clock.
#pragma once

#include <cstdint>

#include "dtrain/data/read_usage.h"

namespace dtrain::data {

class WorkerCount {
 public:
  // `free_cores`: the cores that the training leaves free. `most`: the largest result; the smallest is 1.
  WorkerCount(double free_cores, int most);

  // Called after each batch. `used_ns`: the time from the training's receipt of the last batch to its request for this
  // one. Returns the number of workers from now on.
  int after_batch(std::int64_t used_ns, const ReadUsage& usage);

 private:
  int wanted() const;

  const double free_cores_;
  const int most_;
  int count_ = 1;
  // Sums over the batches since the last decision.
  std::int64_t batches_ = 0, used_ns_ = 0;
  ReadUsage usage_;
  int fewer_wanted_ = 0;  // consecutive decisions in which fewer were enough
};

}  // namespace dtrain::data
