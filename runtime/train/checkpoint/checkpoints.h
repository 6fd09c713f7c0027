// What becomes of checkpoints; CheckpointSchedule says when one is taken. It is taken between two batches, on all ranks
// at once (Snapshot), and training goes on while a saver process writes it (checkpoint/saver.h). docs/checkpoints.md
// describes what users see. Training thread; save() and finish() are collective.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/checkpoint_hosts.h"
#include "checkpoint/snapshot.h"
#include "dtrain/checkpoint/saver.h"
#include "dtrain/run/rank_session.h"
#include "step/training_step.h"

namespace dtrain::train {

class Checkpoints {
 public:
  struct Options {
    TensorNames names;
    Json run;  // About::run
  };
  // `visit`: walks through all of the state; collective. Collective.
  Checkpoints(run::RankSession& session, TrainingStep& step, const Options& options,
              std::function<void(StateVisitor&)> visit);
  ~Checkpoints();

  // Whether this rank's saver can take no checkpoint yet. Hands over what the last update has completed.
  bool saver_busy();
  // Of the last checkpoint: when it was taken (or when this began), whether the model has spoiled it, whether it could
  // not be written, and what it has cost: how long it has held up training, and the saver's processor time.
  Nanoseconds last_time() const { return last_time_; }
  bool spoiled() const { return snapshot_.spoiled(); }
  bool failed() const { return result_ && !result_->error.empty(); }
  double cost_s() const { return cost_s_; }  // of the last that was written

  // Training goes on from a checkpoint of this batch.
  void resumed_at(std::int64_t batch) { resumed_at_ = batch; }

  // After the first batch: makes the memory and starts the saver, so that the first checkpoint costs no more than the
  // others. Collective.
  void make_ready();
  // Before the last update that a checkpoint is to contain which is due after this batch: lets that update copy a part.
  void prepare();

  struct Moment {
    std::int64_t batch = 0, epoch = 0;
    std::string reason;                  // About::reason
    std::optional<double> metric_value;  // of searcher.metric, validated at this batch
  };
  // Takes one. Waits for a saver that is still busy, as long as it takes; without `may_wait` none may be. `last`: no
  // update follows.
  void save(const Moment& moment, bool may_wait, bool last);
  // Waits until the last checkpoint is durable. One that has failed is written once more from the same memory. True: it
  // is durable; false: none was taken. Error where it is not durable; its text is the same on all ranks.
  bool finish();

 private:
  void start_saver();
  // What rank 0 tells. It may wait for its saver before that.
  std::string wait_for_rank_0(const std::string& key, const std::string& told = {});
  void wait_for_saver();
  void find_passed_over();
  // Tells the saver to write the snapshot, once this rank's part of it is there.
  void hand_over();
  void take_result(const checkpoints::SaveResult& result);

  run::RankSession& session_;
  const Options options_;
  const CheckpointHosts hosts_;
  const std::filesystem::path folder_;
  Snapshot snapshot_;

  std::unique_ptr<checkpoints::Saver> saver_;  // of a leader
  int memories_ = 0;                           // Snapshot's, which the saver knows
  std::optional<Moment> last_;                 // the last that was taken
  bool is_last_ = false;                       // save()'s
  bool handed_over_ = true;
  double cost_s_ = 0;
  Nanoseconds last_time_{0};
  bool told_of_not_finite_ = false;
  bool saver_was_started_ = false;
  std::int64_t resumed_at_ = 0;                    // batch; 0: the run has begun anew
  std::vector<std::int64_t> passed_over_;          // Retention's
  std::int64_t awaited_ = 0;                       // waits for a saver that all ranks have made
  std::optional<checkpoints::SaveResult> result_;  // of the last, of a leader
};

}  // namespace dtrain::train
