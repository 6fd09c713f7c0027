// How ranks come to have data connections. Both sides of each connection have proved that they know the run's secret.
#pragma once

#include <optional>
#include <vector>

#include "dtrain/comm/backends.h"
#include "tcp/data_socket.h"

namespace dtrain::comm {

// Returns the connections to the wanted ranks of parts.control, by rank. A rank that wants another is wanted by it, and
// none wants itself. Collective over all ranks; the caller's thread does the work. CommError if a rank is not connected
// before the deadline, or if the run fails meanwhile.
std::vector<std::optional<DataSocket>> connect_to_ranks(const BackendParts& parts, const std::vector<bool>& wanted);
std::vector<std::optional<DataSocket>> connect_to_all_ranks(const BackendParts& parts);

}  // namespace dtrain::comm
