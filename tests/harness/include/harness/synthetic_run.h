// Writes the folder of a run that never was, as dtrain writes it (docs/profile-format.md): ranks in lockstep whose own
// work is given step by step, who wait for the last of them in each exchange. What analysis must find in it is known
// exactly. Beyond `detail_steps` steps are folded into windows, as in dumps of long runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/profile/records.h"

namespace dtrain::test {

struct SyntheticStep {
  profile::PhaseTimes own_ns{};  // what the rank does itself; kAllreduceWait follows from the others
  std::int64_t samples = 32;
  std::int64_t exchange_ns = 0;  // exposed, for every rank; the largest of the ranks' counts
  std::int64_t queue_depth = 4;  // of the loader
};

// What reading a batch took the loader's workers.
struct SyntheticReading {
  std::int64_t cpu_ns = 0, no_core_ns = 0, bytes = 0, disk_bytes = 0, requests = 0, skipped = 0;
};

struct SyntheticRun {
  std::string name = "synthetic";
  int ranks = 2;
  int ranks_per_host = 2;
  std::int64_t steps = 200;
  std::int64_t detail_steps = 10'000;
  int buckets = 2;
  std::int64_t bucket_bytes = 1 << 20;
  std::int64_t initialization_ns = 500'000'000;
  std::int64_t loader_fetch_ns = 200'000;
  std::optional<SyntheticReading> reading;  // of each batch; empty: not recorded
  std::uint64_t seed = 1;
  double noise = 0.01;  // of compute: standard deviation over its mean

  // In ns, before noise: loading 0.2 ms, forward 3, backward 6, optimizer 1, other 0.1, exchange 0.5.
  // `change` makes a step another one: rank, batch (from 1), the step.
  std::function<void(int rank, std::int64_t batch, SyntheticStep& step)> change;
  // Per rank: bytes more in every step; load of others on its core and time without a core, in percent.
  std::function<double(int rank)> leak_bytes, foreign_percent, cpu_wait_percent;
};

// What was written, for tests to compare with.
struct SyntheticTruth {
  double loop_s = 0;           // of the slowest rank
  std::vector<double> wait_s;  // by rank
  std::int64_t outliers = 0;   // steps of folded windows that have lines of their own, all ranks
  std::uintmax_t bytes = 0;    // of all dumps
};

// `folder` is made; profile/ and plan.json are written.
SyntheticTruth write_synthetic_run(const std::filesystem::path& folder, const SyntheticRun& run);

}  // namespace dtrain::test
