// What the keeper of host 0 tells of the recoveries of a run: from which batch it went on, and how many batches were
// done again. Its own clock alone counts, as the ranks of other hosts have others. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::launcher {

class NodeRecoveries {
 public:
  using SteadyTime = std::chrono::steady_clock::time_point;
  // Writes an event of the run.
  using Write = std::function<void(const std::string& event, const Json& fields)>;
  explicit NodeRecoveries(Write write) : write_(std::move(write)) {}

  // Rank 0 has opened the run's folder, and goes on after that many batches.
  void begin_attempt(const std::filesystem::path& run_dir, std::int64_t from_batch);
  // Tells of the recovery once there is a new batch.
  void take(const rank::Progress& progress);
  // The attempt has failed, and its records are in their usual place in `run_dir` (empty: there is no folder yet).
  // `noticed`: the failure of a rank of this host, or the end of its ranks.
  void fail(const std::filesystem::path& run_dir, const std::string& cause, SteadyTime noticed);

  // The most batches that the run has done.
  std::int64_t batches_done() const { return done_; }

 private:
  struct Pending {
    std::string cause;
    SteadyTime noticed;
  };
  const Write write_;
  int attempt_ = 0;
  std::int64_t from_ = 0, done_ = 0;
  std::optional<Pending> pending_;
};

}  // namespace dtrain::launcher
