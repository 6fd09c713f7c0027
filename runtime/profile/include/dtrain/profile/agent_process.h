// Starting the agent process of a host: it samples the system, drains the ranks' rings into
// profile/rank-NNNN.jsonl and profile/agent-<id>.jsonl, outlives launcher and ranks, and exits last.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/base/subprocess.h"

namespace dtrain::profile {

struct AgentOptions {
  std::string agent_id;                     // of this host, in file names and records
  std::filesystem::path profile_folder;     // <run>/profile, exists
  std::vector<int> local_ranks;             // it exits once all of these have come and gone …
  std::chrono::seconds rank_timeout{600};   // … or did not come in this time
  std::chrono::milliseconds sample_period{500};
};

struct AgentProcess {
  Process process;      // in its own process group and session: a terminal's Ctrl-C does not reach it
  std::string socket;   // what Recorder::Options::agent_socket wants
};

// Starts bin/dtrain-agent, found relative to this library. Returns once its socket is open.
AgentProcess start_agent(const AgentOptions& options);

}  // namespace dtrain::profile
