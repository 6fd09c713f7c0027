// Measures networks between hosts with a ProbeSession each. One thread; each network takes about a second.
#pragma once

#include <vector>

#include "network/network_choice.h"
#include "network/probe_session.h"

namespace dtrain::run {

// Sets the figures or the problem of each network. `sessions` are in the order of its ends. CommError if a host is
// lost.
void measure_networks(std::vector<CommonNetwork>& networks, std::vector<ProbeSession>& sessions);

// Sends one request to all hosts, or one to each. Returns the answers in that order, once all have arrived.
std::vector<Json> ask_all(std::vector<ProbeSession>& sessions, const Json& request, ProbeSession::Time deadline);
std::vector<Json> ask_each(std::vector<ProbeSession>& sessions, const std::vector<Json>& requests,
                           ProbeSession::Time deadline);

}  // namespace dtrain::run
