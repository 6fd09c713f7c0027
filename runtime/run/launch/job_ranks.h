// The ranks of a run that mpirun or srun starts for `dtrain launch`. They report over the launcher's plane
// (rank_plane.h); what they print arrives as the output of the job. One thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "launch/job.h"
#include "launch/output_pipe.h"
#include "launch/run_attempt.h"
#include "launch/watched_ranks.h"
#include "link/rank_plane.h"

namespace dtrain::run {

class JobRanks final : public WatchedRanks {
 public:
  // Starts the job. SystemError when it cannot be started.
  JobRanks(const Attempt& attempt, RankPlane& plane, const Job& job);
  // How the job ended. Called once the watcher has seen its end.
  JobEnd end();

  void add_descriptors(std::vector<pollfd>& descriptors) const override;
  void take(bool last) override;
  void judge() override;
  void interrupt(const Interrupt& interrupt) override;
  void end_what_hangs() override;
  bool all_joined() const override { return end_.joined == attempt_.plan.world_size(); }
  bool has_failed() const override { return end_.error.has_value(); }
  bool all_ended() const override { return ended_; }

 private:
  // How long a job that should end by itself may take before it gets SIGTERM, and then SIGKILL.
  struct Patience {
    std::chrono::milliseconds before_term;
    std::chrono::milliseconds before_kill;
  };
  static const Patience kAfterFailure;
  static const Patience kAfterSilence;
  static const Patience kAfterFinish;

  Process start(const Job& job);
  void end_within(const Patience& patience);
  void keep(const std::string& line);

  const Attempt& attempt_;
  RankPlane& plane_;
  std::optional<LineAppender> log_;  // start() opens it
  bool log_is_torn_ = false;
  OutputPipe out_;
  OutputPipe errors_;
  Process process_;
  JobEnd end_;
  bool ended_ = false;
  Patience patience_ = kAfterFailure;
  std::optional<Nanoseconds> hangs_since_;
  bool terminated_ = false;
  bool killed_ = false;
};

// Starts the job and watches it until it has ended.
JobEnd watch_job(const Attempt& attempt, RankPlane& plane, const Job& job);

}  // namespace dtrain::run
