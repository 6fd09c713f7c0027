// How the ranks of a communicator come to have data connections: each rank listens, and connects to the ranks below it.
#pragma once

#include <string>
#include <vector>

#include "dtrain/comm/backends.h"
#include "tcp/data_socket.h"

namespace dtrain::comm {

// Returns `streams` connections to each peer, by its rank in `parts.control`. Collective; the caller's thread does the
// work. Both sides of each connection have proved that they know the run's secret. Strangers that connect are closed
// after a few seconds, or sooner if there are many; a warning then says how many. CommError if a rank is not connected
// before the deadline, or if the run fails meanwhile.
std::vector<std::vector<DataSocket>> connect_ranks(const BackendParts& parts, int streams);

}  // namespace dtrain::comm
