// Takes and writes checkpoints; CheckpointSchedule says when. A checkpoint is taken between two batches, on all ranks
// at once (Snapshot), and training goes on while a saver process writes it (checkpoint/saver.h). docs/checkpoints.md
// describes what users see. Training thread; save() and make_durable() are collective.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/snapshot.h"
#include "dtrain/checkpoint/saver.h"
#include "dtrain/rank/rank_session.h"
#include "step/training_step.h"

namespace dtrain::train {

class Checkpoints {
 public:
  struct Options {
    TensorNames names;
    Json run;  // About::run
  };
  // `visit`: walks through all of the state; collective. Collective.
  Checkpoints(rank::RankSession& session, TrainingStep& step, const Options& options,
              std::function<void(StateVisitor&)> visit);
  ~Checkpoints();

  // True if this rank's saver can take no checkpoint yet. Hands over the copies that the last update has completed.
  bool saver_busy();
  // Facts of the last checkpoint: when it was taken (or when this object began); if the model has spoiled it; if it
  // could not be written; and its cost: how long it has held up training, plus the saver's processor time.
  Nanoseconds last_time() const { return last_time_; }
  bool spoiled() const { return snapshot_.spoiled(); }
  bool failed() const { return result_ && !result_->error.empty(); }
  double cost_s() const { return cost_s_; }  // of the last checkpoint that was written

  const CheckpointHosts& hosts() const { return hosts_; }
  // As Snapshot::awaits_update().
  bool awaits_update() const { return snapshot_.awaits_update(); }

  // To be called when training goes on from a checkpoint of this batch.
  void resumed_at(std::int64_t batch) { resumed_at_ = batch; }

  // After the first batch: makes the memory and starts the saver, so that the first checkpoint costs no more than the
  // others. Collective.
  void make_ready();
  // Called before the last update of a checkpoint that is due after this batch: lets that update copy a part.
  void prepare();

  struct Moment {
    std::int64_t batch = 0, epoch = 0;
    std::string reason;                  // About::reason
    std::optional<double> metric_value;  // of searcher.metric, validated at this batch
    bool awaits_validation = false;      // About::awaits_validation
  };
  // Takes a checkpoint. Waits for a busy saver, as long as it takes; without `may_wait` no saver may be busy. `last`:
  // no update follows.
  void save(const Moment& moment, bool may_wait, bool last);
  // Waits until the last checkpoint is durable. A failed checkpoint is written once more from the same memory. Returns
  // true if it is durable; false if none was taken. Error if it is not durable; the text is the same on all ranks.
  bool make_durable();

 private:
  void start_saver();
  // Returns the text that rank 0 gives. Rank 0 may wait for its saver before that.
  std::string wait_for_rank_0(const std::string& key, const std::string& told = {});
  void wait_for_saver();
  void find_passed_over();
  // Tells the saver to write the snapshot, once this rank's part of it is complete.
  void hand_over();
  void take_result(const checkpoints::SaveResult& result);

  rank::RankSession& session_;
  const Options options_;
  const CheckpointHosts hosts_;
  const std::filesystem::path folder_;
  Snapshot snapshot_;

  std::unique_ptr<checkpoints::Saver> saver_;  // set on a leader
  int memories_ = 0;                           // number of Snapshot's memories, as the saver knows it
  std::optional<Moment> last_;                 // the last one that was taken
  bool is_last_ = false;                       // `last` of save()
  bool is_second_try_ = false;                 // of make_durable()
  bool handed_over_ = true;
  double cost_s_ = 0;
  Nanoseconds last_time_{0};
  bool told_of_not_finite_ = false;
  bool saver_was_started_ = false;
  std::int64_t resumed_at_ = 0;                    // batch; 0: the run has begun anew
  std::vector<std::int64_t> passed_over_;          // for Retention
  std::int64_t awaited_ = 0;                       // number of waits for a saver, the same on all ranks
  std::optional<checkpoints::SaveResult> result_;  // of the last checkpoint, on a leader
};

}  // namespace dtrain::train
