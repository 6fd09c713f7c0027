// Puts the state of a checkpoint back into training: opens it where this rank can read it, restores the state, and
// compares the run with the checkpoint's. Training thread.
//
// A run with as many ranks as the checkpoint's gives every rank its own state again. With another number of ranks, a
// rank's buffers are those of rank 0; the residuals of compression, and the own state of ranks that step by themselves,
// are the mean over the checkpoint's ranks; sums of metrics go to rank 0. Weights are then equal up to rounding. With
// virtual ranks every logical rank gets its own state again, whichever rank has it now, and weights have the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/base/json.h"
#include "dtrain/data/safetensors.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/loader.h"
#include "dtrain/train/metrics.h"
#include "state_visitor.h"

namespace dtrain::train {

class StateReader {
 public:
  // Opens a checkpoint, for a rank of a run of `world_size`. `one_state`: all ranks of this run have the same
  // parameters and the same optimizer state; if the checkpoint's ranks had their own (local steps), each gets the mean
  // of all. DataError, SystemError.
  StateReader(const std::filesystem::path& checkpoint, int rank, int world_size, bool one_state);
  ~StateReader();

  // `visit` calls the visitor with all of the state. ConfigError lists the entries that the checkpoint does not have,
  // or has in another shape or type. Entries of the way in which gradients are exchanged (compression, local steps) and
  // of the scale of a loss may be missing: they begin anew, and missing() lists them.
  void restore(const std::function<void(StateVisitor&)>& visit);
  const std::vector<std::string>& missing() const { return missing_; }
  const Json& about() const { return about_; }  // manifest.json's "about"
  bool other_world_size() const { return world_size_before_ != world_size_; }
  // True if the checkpoint is of virtual ranks: ranks share all state but that of logical ranks, of which each is in
  // the file of the rank that had it.
  bool of_virtual_ranks() const { return of_virtual_ranks_; }

 private:
  class Restorer;
  struct File;
  File* file(const std::string& name);
  // Returns the rank's file, with its values.
  File& own(int rank);
  std::optional<at::Tensor> read(const std::string& file, const std::string& name);

  const std::filesystem::path folder_;
  const int rank_, world_size_;
  const bool one_state_;
  int world_size_before_ = 1;
  bool of_virtual_ranks_ = false;
  at::Tensor read_to_;  // where the next tensor's bytes go if it has the same form; undefined: into a new one
  Json about_;
  std::map<std::string, std::unique_ptr<File>> files_;
  std::vector<std::string> missing_;
};

// Sends a file of rank `from` to all ranks, of which some write it. Collective. SystemError.
void send_file(rank::RankSession& session, int from, const std::filesystem::path& file, const std::filesystem::path& to,
               std::size_t bytes, bool receives);

struct CheckpointHosts;

// Opens the checkpoint that a run goes on from where this rank can read it. Collective.
class OpenCheckpoint {
 public:
  // `checkpoint`: its folder, the same on all ranks. Hosts that do not see the folder get its files, in a temporary
  // folder. SystemError, DataError.
  OpenCheckpoint(rank::RankSession& session, const std::filesystem::path& checkpoint);
  // The state in memory from which the run goes on (gathered_state.h).
  OpenCheckpoint(rank::RankSession& session, const CheckpointHosts& hosts);
  ~OpenCheckpoint();
  OpenCheckpoint& operator=(OpenCheckpoint&&) = delete;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::filesystem::path temporary_;  // to be removed; empty: none
};

// Returns the facts with which a run that goes on is compared, besides the experiment's keys that change what is
// trained: facts that may change the bits. All ranks get rank 0's, so that the savers of all hosts write the same.
// `trial`: Trial::state_owner(). Collective.
Json facts_for_resume(rank::RankSession& session, const BatchSource& data, const std::string& trial);

// ConfigError if the checkpoint and this run (`facts`) have other numbers of virtual ranks, or of their threads.
void require_same_virtual_ranks(const StateReader& reader, const Json& facts, const std::filesystem::path& checkpoint);

// Rank 0: writes that training goes on, and warns of facts that may change the bits (`facts`: About::run of this run).
void tell_of_resume(rank::RankSession& session, const StateReader& reader, const Json& facts, std::int64_t batch,
                    std::int64_t epoch);

// True if the checkpoint is of this run's trial, so that the trial's own state fits.
bool is_of_same_trial(const StateReader& reader, const Json& facts);
// The same as tell_of_resume() for a run that begins with the training state of another run's `checkpoint`.
void tell_of_beginning(rank::RankSession& session, const std::filesystem::path& checkpoint, const StateReader& reader,
                       const Json& facts, std::int64_t batch, std::int64_t epoch);

// Combines two values of a metric, in the loop and when a checkpoint is read by another number of ranks; means are sums
// here. nan if one of the values is nan.
inline double combined(Reduction reduction, double value, double with) {
  if (reduction == Reduction::kMean || reduction == Reduction::kSum) return value + with;
  if (std::isnan(value) || std::isnan(with)) return std::nan("");
  return reduction == Reduction::kMin ? std::min(value, with) : std::max(value, with);
}

}  // namespace dtrain::train
