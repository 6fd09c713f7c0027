// The state in memory from which a run goes on whose hosts have keepers: brought to every host, and made whole where it
// was not (checkpoint/host_states.h). Training thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/snapshot.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::train {

// Copies the buffers in rank 0's own file, which are the model's in the shared files, to their places; null: there is
// none. Returns the numbers and texts of the file, as state.json has them. DataError, SystemError.
std::string take_from_rank_0(const std::filesystem::path& file,
                             const std::function<std::byte*(const std::string& name, std::size_t bytes)>& place_of);

struct GatheredState {
  std::filesystem::path folder;  // of the whole state, for the ranks of this host
  bool is_temporary = false;     // its memory folder has no room for it
};
// Brings RunMemory::begins_with to all hosts. The ranks have RunMemory::lineage from then on. Collective. SystemError,
// DataError.
GatheredState gather_state(rank::RankSession& session, const CheckpointHosts& hosts);

}  // namespace dtrain::train
