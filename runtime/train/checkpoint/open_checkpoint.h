// The checkpoint that a run goes on from, where this rank can read it; and what the run is compared with then. Training
// thread; collective.
#pragma once

#include <cstdint>
#include <filesystem>

#include "dtrain/base/json.h"
#include "dtrain/run/rank_session.h"
#include "dtrain/train/loader.h"

namespace dtrain::train {

class StateReader;

class OpenCheckpoint {
 public:
  // Hosts that do not see the session's checkpoint are sent its files, into a temporary folder. SystemError, DataError.
  explicit OpenCheckpoint(run::RankSession& session);
  ~OpenCheckpoint();
  OpenCheckpoint(const OpenCheckpoint&) = delete;
  OpenCheckpoint& operator=(const OpenCheckpoint&) = delete;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::filesystem::path temporary_;  // to be removed; empty: none
};

// What a run that goes on is compared with, besides the experiment's keys that change what is trained: what may change
// the bits. Those of rank 0, on all ranks: the savers of all hosts write the same. Collective.
Json facts_for_resume(run::RankSession& session, const BatchSource& data);

// Rank 0: writes that training goes on, and warns of what may change its bits (`facts`: About::run of this run).
void tell_of_resume(run::RankSession& session, const StateReader& reader, const Json& facts, std::int64_t batch,
                    std::int64_t epoch);

}  // namespace dtrain::train
