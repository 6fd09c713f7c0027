// How many threads read, with `workers: auto`: as many as the training's rate needs, if there are cores for them.
//
// All that counts is measured: how long the training takes for a batch, without its waiting for the loader; and what
// the workers take for one, how much of it on a core. Workers that wait for storage need no core of their own, so a
// slow disk may get more of them than there are cores. Only the training thread uses it; it knows no clock.
#pragma once

#include <cstdint>

#include "dtrain/data/read_usage.h"

namespace dtrain::data {

class WorkerCount {
 public:
  // `free_cores`: those that the training itself leaves free. `most`: the answer is from 1 to this.
  WorkerCount(double free_cores, int most);

  // After each batch. `used_ns`: from when the training got the last batch until it asked for this one. Returns how
  // many workers are to read from now on.
  int after_batch(std::int64_t used_ns, const ReadUsage& usage);

 private:
  int wanted() const;

  const double free_cores_;
  const int most_;
  int count_ = 1;
  // Of the batches since the last decision.
  std::int64_t batches_ = 0, used_ns_ = 0;
  ReadUsage usage_;
  int fewer_wanted_ = 0;  // decisions in a row in which fewer would have been enough
};

}  // namespace dtrain::data
