// The profiling agent of a host on which no launcher starts one. Plain function.
#pragma once

#include <memory>
#include <string>

#include "dtrain/comm/control.h"
#include "dtrain/profile/agent_process.h"

namespace dtrain::run {

// Collective over the ranks of a host, which all pass the same `host_key`. The first of them starts the profiling agent
// and gets it in `agent`; the others wait for it. The agent ends by itself, after the last rank. Returns its socket.
std::string share_agent(comm::ControlPlane& control, const std::string& host_key, const profile::AgentOptions& options,
                        const Clock& clock, std::unique_ptr<profile::KeptAgent>& agent);

}  // namespace dtrain::run
