// Processes that measure at the same time, one for each rank of a host. They are forked, pinned like ranks, and share a
// barrier in shared memory. Free of torch.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <vector>

#include "dtrain/base/shared_memory.h"

namespace dtrain::calibration {

struct RankProcessOptions {
  int ranks = 1;
  std::vector<std::vector<int>> cpus;  // of each rank; empty: not pinned
  std::size_t values = 0;              // number of doubles for each rank's results
  std::size_t shared_bytes = 0;        // bytes of each rank's part of the shared memory; zeroed
};

// The interface of one measuring process. One thread.
class RankProcess {
 public:
  RankProcess(int rank, const RankProcessOptions& options, std::byte* memory);
  int rank() const { return rank_; }
  int ranks() const { return options_.ranks; }
  // Returns when every rank has called barrier() as often.
  void barrier();
  // The results of this rank, and those of another rank, which may be read after a barrier().
  double* values() const { return values_of(rank_); }
  double* values_of(int rank) const;
  std::byte* shared_of(int rank) const;

  static std::size_t bytes(const RankProcessOptions& options);

 private:
  struct Barrier {
    std::atomic<int> arrived{0};
    std::atomic<int> generation{0};
  };
  Barrier& arrivals() const { return *reinterpret_cast<Barrier*>(memory_); }

  int rank_;
  const RankProcessOptions& options_;
  std::byte* memory_;
};

// Runs `work` in a process for each rank and waits for all of them. Returns the results of all ranks, rank by rank. The
// calling process must have one thread, and must not have used libtorch. Error: a process failed; the others are ended.
std::vector<double> run_rank_processes(const RankProcessOptions& options,
                                       const std::function<void(RankProcess&)>& work);

}  // namespace dtrain::calibration
