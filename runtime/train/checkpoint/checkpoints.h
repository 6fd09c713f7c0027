// When checkpoints are taken, and taking them. A checkpoint is taken between two batches, on all ranks at once: every
// rank copies its part of the state into memory that it shares with its host's saver (checkpoint/saver.h), and training
// goes on while that writes. docs/checkpoints.md describes what users see. Training thread; save() and finish() are
// collective.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_hosts.h"
#include "checkpoint/state_image.h"
#include "dtrain/checkpoint/saver.h"
#include "dtrain/run/rank_session.h"
#include "state/state_visitor.h"

namespace dtrain::train {

class Checkpoints {
 public:
  struct Options {
    std::int64_t period = 0;  // batches between checkpoints; 0: rank 0 asks for one now and then
    bool shared = true;       // StateImage's
    std::map<std::string, std::string> tied;
    Json run;  // About::run
  };
  // `visit`: walks through all of the state; collective. Collective.
  Checkpoints(run::RankSession& session, const Options& options, std::function<void(StateVisitor&)> visit);
  ~Checkpoints();

  // Before each batch: what this rank announces.
  bool saver_busy();
  bool wants_one() const;

  // Training goes on from a checkpoint of this batch.
  void resumed_at(std::int64_t batch) { last_batch_ = batch; }

  // Whether one is due after this batch by the period, or because a rank has asked for it (`wanted`). The same on all
  // ranks.
  bool is_due(std::int64_t batch, bool wanted) const;
  // It is due, but a saver is busy: says so, once for each.
  void delay(std::int64_t batch);

  struct Moment {
    std::int64_t batch = 0, epoch = 0;
    std::string reason;                  // About::reason
    std::optional<double> metric_value;  // of searcher.metric, validated at this batch
  };
  // Copies the state. Waits for a saver that is still busy.
  void save(const Moment& moment);
  // Waits until the last checkpoint is durable. One that has failed is written once more from the same memory. True: it
  // is durable. Error where it is not and `must_last`; its text is the same on all ranks.
  bool finish(bool must_last);

 private:
  void make_memory(std::size_t bytes_of_largest_own);
  void start_saver();
  void wait_for_saver();
  void gather_from_other_hosts(const StateImage& image, const std::vector<std::int64_t>& sizes);
  void copy(const StateImage& image, const std::vector<std::int64_t>& sizes);
  void hand_over(const Moment& moment, const StateImage& image, const std::vector<std::int64_t>& sizes);
  void send_request();
  void take_result(const checkpoint::SaveResult& result);
  std::size_t own_offset(int region) const;

  run::RankSession& session_;
  const Options options_;
  const std::function<void(StateVisitor&)> visit_;
  const CheckpointHosts hosts_;
  const std::filesystem::path folder_;

  std::optional<checkpoint::SnapshotMemory> memory_;
  std::size_t shared_bytes_ = 0;              // of the shared files' images, in whole pages; on host 0
  std::size_t own_capacity_ = 0;              // of each rank's image
  int memories_ = 0;                          // made so far; names them
  std::unique_ptr<checkpoint::Saver> saver_;  // of a leader
  std::uint64_t number_ = 0;                  // of the last snapshot in memory_
  std::optional<Moment> last_;                // the last that was taken
  checkpoint::SaveRequest request_;           // for it, of a leader
  std::int64_t last_batch_ = 0;
  Nanoseconds last_time_{0};
  double copy_s_ = 0;                         // how long the last held training up, on this rank
  std::optional<Nanoseconds> delayed_since_;  // when the next one was due, while it waits
  bool told_of_delay_ = false;
  std::optional<checkpoint::SaveResult> result_;  // of the last, of a leader
};

}  // namespace dtrain::train
