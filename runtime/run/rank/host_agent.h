// The profiling agent of a host whose ranks have no launcher on it. Plain function.
#pragma once

#include <functional>
#include <string>

#include <sys/types.h>

#include "dtrain/comm/control.h"
#include "dtrain/profile/agent_process.h"

namespace dtrain::run {

// Collective over the ranks of a host, all of which give the same `host_key`. The first of them starts the agent and
// calls `started` with its process id; the others wait for it. The agent ends by itself, after the last rank. Returns
// the agent's socket.
std::string share_agent(comm::ControlPlane& control, const std::string& host_key, const profile::AgentOptions& options,
                        const std::function<void(pid_t)>& started);

}  // namespace dtrain::run
