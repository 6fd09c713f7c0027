// What a thread that reads has used, from the kernel: so that every data set is measured alike, a user's own included.
#pragma once

#include <chrono>

#include "dtrain/base/fd.h"
#include "dtrain/data/read_usage.h"

namespace dtrain::data {

// To be made and called on the thread that it measures. Asking the kernel takes some 7 us, so it is not asked after
// every short piece of work: what several of them have read counts for the last one.
class ThreadUsage {
 public:
  // `is_of_reading`: the thread does nothing else, so that whatever it uses belongs to the next piece.
  explicit ThreadUsage(bool is_of_reading);

  // Around a piece of work.
  void begin();
  ReadUsage end();

 private:
  ReadUsage of_kernel();  // since the thread began, without times on a core

  const bool is_of_reading_;
  UniqueFd schedule_;  // /proc/thread-self/schedstat
  UniqueFd input_;     // /proc/thread-self/io
  // What reading these two files has added to what they say.
  std::int64_t own_bytes_ = 0, own_requests_ = 0;
  ReadUsage last_;  // of_kernel()
  std::chrono::steady_clock::time_point asked_, begun_;
  std::int64_t begun_cpu_ns_ = 0;
};

}  // namespace dtrain::data
