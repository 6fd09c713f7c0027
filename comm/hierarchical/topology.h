// The topology of a run, as plain values: which ranks share a host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace dtrain::comm {

struct Placement {
  std::vector<std::vector<int>> hosts;  // their ranks, in rank order; hosts in the order of their lowest rank
  std::vector<std::size_t> host_of;     // by rank
  std::vector<std::size_t> index_of;    // by rank: its place among its host's
  std::size_t most = 0;                 // ranks of the largest host

  explicit Placement(const std::vector<std::string>& names) {
    std::vector<std::string> seen;
    for (std::size_t rank = 0; rank < names.size(); ++rank) {
      const auto host = static_cast<std::size_t>(std::find(seen.begin(), seen.end(), names[rank]) - seen.begin());
      if (host == seen.size()) {
        seen.push_back(names[rank]);
        hosts.emplace_back();
      }
      host_of.push_back(host);
      index_of.push_back(hosts[host].size());
      hosts[host].push_back(static_cast<int>(rank));
      most = std::max(most, hosts[host].size());
    }
  }
  std::size_t ranks() const { return host_of.size(); }
};

// Returns the numbers in the run of some ranks of a control plane, of which rank i is rank members[i] of the run;
// without members, rank i.
inline std::vector<int> numbers_in_run(std::vector<int> ranks, const std::vector<int>& members) {
  if (members.empty()) return ranks;
  for (int& rank : ranks) rank = members[static_cast<std::size_t>(rank)];
  return ranks;
}

}  // namespace dtrain::comm
