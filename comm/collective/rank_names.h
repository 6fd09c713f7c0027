// What errors call the ranks of a communicator: by the run's numbers where it is of some of the run's ranks.
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
