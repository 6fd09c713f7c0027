// Measures the resources of a reading thread by the kernel's counts, which cover every data set, even a user's.
#pragma once

#include <chrono>

#include "dtrain/base/fd.h"
#include "dtrain/data/read_usage.h"

namespace dtrain::data {

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
