// Error messages name ranks by their number in the run, also for a communicator of a subset.
#pragma once

#include <string>
#include <vector>

namespace dtrain::comm {

struct RankNames {
  std::vector<int> members;  // by rank; empty: the ranks' own numbers
  std::string of(int r) const {
    return "rank " + std::to_string(members.empty() ? r : members[static_cast<std::size_t>(r)]);
  }
};

}  // namespace dtrain::comm
