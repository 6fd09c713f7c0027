// The threads that read batches: how many there are with `workers: auto`, and what each of them uses.
#pragma once

#include <chrono>
#include <cstdint>

#include "dtrain/base/file.h"
#include "dtrain/data/read_usage.h"

namespace dtrain::data {

// Determines the number of reading threads for `workers: auto`: as many as the training's rate needs and cores allow.
//
// The decision uses measured times: the training's time for a batch, without its waits for the loader, and the workers'
// time for a batch, in total and on a core. Workers that wait for storage need no core, so with a slow disk there may
// be more workers than cores. Only the training thread uses this class, which reads no clock.
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

// Measures the resources of a reading thread by the kernel's counts, which cover every data set, even a user's.
// Created and called on the measured thread. A query of the kernel takes some 7 us, so it does not follow every short
// piece of work: the reads of several short pieces count for the last of them.
class ThreadUsage {
 public:
  // `is_of_reading`: the thread only reads, so that all its resources belong to the next piece.
  explicit ThreadUsage(bool is_of_reading);

  // Called around a piece of work.
  void begin();
  ReadUsage end();

 private:
  ReadUsage of_kernel();  // counts since the thread began, without times on a core

  const bool is_of_reading_;
  UniqueFd schedule_;  // /proc/thread-self/schedstat
  UniqueFd input_;     // /proc/thread-self/io
  // The bytes and requests that reading these two files has added to their counts.
  std::int64_t own_bytes_ = 0, own_requests_ = 0;
  ReadUsage last_;  // of_kernel()
  std::chrono::steady_clock::time_point asked_, begun_;
  std::int64_t begun_cpu_ns_ = 0;
};

}  // namespace dtrain::data
