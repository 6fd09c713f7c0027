// Opens the checkpoint that a run goes on from where this rank can read it, and compares the run with it. Training
// thread; collective.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/loader.h"

namespace dtrain::train {

class StateReader;

class OpenCheckpoint {
 public:
  // `checkpoint`: its folder, the same on all ranks. Hosts that do not see the folder get its files, in a temporary
  // folder. SystemError, DataError.
  OpenCheckpoint(run::RankSession& session, const std::filesystem::path& checkpoint);
  ~OpenCheckpoint();
  OpenCheckpoint(const OpenCheckpoint&) = delete;
  OpenCheckpoint& operator=(const OpenCheckpoint&) = delete;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::filesystem::path temporary_;  // to be removed; empty: none
};

// Returns the facts with which a run that goes on is compared, besides the experiment's keys that change what is
// trained: facts that may change the bits. All ranks get rank 0's, so that the savers of all hosts write the same.
// `trial`: Trial::state_owner(). Collective.
Json facts_for_resume(run::RankSession& session, const BatchSource& data, const std::string& trial);

// Rank 0: writes that training goes on, and warns of facts that may change the bits (`facts`: About::run of this run).
void tell_of_resume(run::RankSession& session, const StateReader& reader, const Json& facts, std::int64_t batch,
                    std::int64_t epoch);

// True if the checkpoint is of this run's trial, so that the trial's own state fits.
bool is_of_same_trial(const StateReader& reader, const Json& facts);
// The same as tell_of_resume() for a run that begins with the training state of another run's `checkpoint`.
void tell_of_beginning(run::RankSession& session, const std::filesystem::path& checkpoint, const StateReader& reader,
                       const Json& facts, std::int64_t batch, std::int64_t epoch);

}  // namespace dtrain::train
