// Checkpoints of the rank program: a vector of floats that every step changes, written by the saver. For ranks on one
// host. Collective over the ranks.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "dtrain/checkpoint/saver.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::rank {

class ProgramCheckpoints {
 public:
  // `weights` are the state; the object must not outlive them.
  ProgramCheckpoints(RankSession& session, std::span<float> weights);

  // Restores the weights from the checkpoint that the session names and cuts the metrics. Returns the batches done; 0:
  // there is no checkpoint.
  std::int64_t resume();
  // Returns once the checkpoint is durable, false if it failed.
  bool save(std::int64_t batch, const std::string& reason);

 private:
  RankSession& session_;
  std::span<float> weights_;
  std::optional<checkpoints::SnapshotMemory> memory_;
  std::unique_ptr<checkpoints::Saver> saver_;  // rank 0's
  std::uint64_t number_ = 0;
};

// The same text for the same bits.
std::string hash_of(std::span<const float> weights);

}  // namespace dtrain::rank
