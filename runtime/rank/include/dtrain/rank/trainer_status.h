// Kubeflow Trainer shows how far a TrainJob is, as its pods tell the server that the variables
// KUBEFLOW_TRAINER_SERVER_* name (docs/kubernetes.md). The process above a run's ranks tells it: the launcher, the
// keeper of host 0, or rank 0 where there is neither.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "dtrain/rank/environment.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::rank {

// Posts the progress of one run on a thread of its own, at most every five seconds. Nothing else waits for the server,
// but for three seconds at most at the end of the run. One thread makes all calls.
class TrainerStatus {
 public:
  using Warn = std::function<void(const std::string&)>;

  // Does nothing where the variables name no server. `warn` is called once, by take() or end(), if a post has failed.
  TrainerStatus(const Variables& variables, Warn warn);
  ~TrainerStatus();
  TrainerStatus& operator=(TrainerStatus&&) = delete;

  // `metrics`: the run's metrics.jsonl, of which the last values are posted too.
  void take(const Progress& progress, const std::filesystem::path& metrics);
  // The run has ended. `done`: it was trained to its full length.
  void end(bool done);

 private:
  class Poster;
  void end(bool done, std::chrono::milliseconds patience);
  void warn(const std::string& problem) const;

  Warn warn_;
  std::shared_ptr<Poster> poster_;  // null: there is no server, or the run has ended
};

}  // namespace dtrain::rank
