// Which of a run's hosts go on with it where they do not reach each other any more: hosts that are cut off from each
// other both take the others for lost, and both see the run's folder. The part that first claims the next attempt there
// has it. Any thread.
#pragma once

#include <string>
#include <vector>

#include "dtrain/rank/run_folder.h"

namespace dtrain::rank {

struct HostClaim {
  std::vector<int> hosts;         // the numbers of those that go on
  std::vector<std::string> gone;  // the names of those that they go on without
  bool operator==(const HostClaim&) const = default;
};

// Claims the attempt before which there were so many others. Returns false if other hosts have claimed it. SystemError
// if the folder cannot be written.
bool claim_attempt(const RunFolder& folder, int attempt, const HostClaim& claim);

// Returns the hosts without which that attempt goes on. Empty: nobody had to claim it.
std::vector<std::string> hosts_gone(const RunFolder& folder, int attempt);

// Removes the claims of a run that all hosts begin, or continue, anew: their numbers count from there.
void forget_claims(const RunFolder& folder);

}  // namespace dtrain::rank
