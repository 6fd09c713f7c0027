// The state in memory from which a run goes on whose hosts have keepers: brought to every host, and made whole where it
// was not (checkpoint/host_states.h). Training thread.
#pragma once

#include <filesystem>

#include "checkpoint/snapshot.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::train {

struct GatheredState {
  std::filesystem::path folder;  // of the whole state, for the ranks of this host
  bool is_temporary = false;     // its memory folder has no room for it
};
// Brings RunMemory::begins_with to all hosts. The ranks have RunMemory::lineage from then on. Collective. SystemError,
// DataError.
GatheredState gather_state(rank::RankSession& session, const CheckpointHosts& hosts);

}  // namespace dtrain::train
