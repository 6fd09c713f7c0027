// Validation beside the training (`validation.beside`): processes of their own, as many as the run has ranks, evaluate
// a checkpoint at a low priority, as `dtrain evaluate` does, while the training goes on. Rank 0 starts them and reads
// what they write; all ranks get the result. Training thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/rank/rank_session.h"
#include "loop/metrics.h"
#include "state_visitor.h"

namespace dtrain::train {

class BesideValidation {
 public:
  // ConfigError if the run asks for validations beside the training and cannot have them.
  explicit BesideValidation(rank::RankSession& session);
  ~BesideValidation();  // ends the processes
  BesideValidation& operator=(BesideValidation&&) = delete;

  // Asks for the validation of this batch, whose checkpoint follows: the processes wait for it. Before the next call
  // its result must be taken.
  void ask(std::int64_t batch);
  bool awaits() const { return awaited_ >= 0; }

  struct Answer {
    std::int64_t batch = 0, epoch = 0;
    ReducedMetrics reduced;
    std::string checkpoint;  // its folder
  };
  // Waits for the result, whose metrics have the bits of a validation by the ranks. Processes that have ended are
  // started again, twice at most. The checkpoint is durable. Error if there is no result. Collective.
  Answer take();

  void visit(StateVisitor& visitor);

 private:
  struct Processes;
  std::filesystem::path checkpoint_of(std::int64_t batch) const;
  // Return a line of metrics.jsonl of the processes, on rank 0.
  Json wait_for_result();
  std::optional<Json> find_earlier_result() const;

  rank::RankSession& session_;
  std::int64_t awaited_ = -1;             // the batch whose result has not been taken; -1: none
  std::unique_ptr<Processes> processes_;  // on rank 0; null: none have been started
  std::int64_t taken_ = 0;                // results so far, the same on all ranks
};

// The orders of a training, as the processes read them.
class CheckpointOrders {
 public:
  // At the lowest priority from here on.
  explicit CheckpointOrders(rank::RankSession& session);

  // Waits for the next checkpoint to be validated, until it is there. Empty: there is no more. Collective.
  std::optional<std::filesystem::path> next();

 private:
  std::string wait_for_order();

  rank::RankSession& session_;
  std::size_t number_ = 0;  // orders so far
};

}  // namespace dtrain::train
