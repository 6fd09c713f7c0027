// Measures networks between hosts that answer (ProbeSession). One thread; each network takes about a second.
#pragma once

#include <vector>

#include "network/network_choice.h"
#include "network/probe_session.h"

namespace dtrain::run {

// Fills in figures or a problem of each network; `sessions` are in the order of its ends. CommError where a host itself
// is lost.
void measure_networks(std::vector<CommonNetwork>& networks, std::vector<ProbeSession>& sessions);

// The same request to all, or one each; the answers in their order, once all are there.
std::vector<Json> ask_all(std::vector<ProbeSession>& sessions, const Json& request, ProbeSession::Time deadline);
std::vector<Json> ask_each(std::vector<ProbeSession>& sessions, const std::vector<Json>& requests,
                           ProbeSession::Time deadline);

}  // namespace dtrain::run
