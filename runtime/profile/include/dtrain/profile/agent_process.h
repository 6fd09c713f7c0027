// Starting the agent process of a host: it samples the system, drains the ranks' rings into
// profile/rank-NNNN.jsonl and profile/agent-<id>.jsonl, outlives launcher and ranks, and exits last.
//
// Any thread may call. The owner of an AgentProcess must let it finish (finish_agent) or detach() the process:
// destroying it kills the agent.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/host/gpus.h"

namespace dtrain::profile {

// Where the agent answers Prometheus. Every client that reaches this address can read it.
struct PrometheusAddress {
  std::string address = "127.0.0.1";  // numeric
  int port = 0;                       // 0: any free one; the first line of the agent's dump has it
};

struct AgentOptions {
  std::string agent_id;                    // of this host, in file names and records
  std::filesystem::path profile_folder;    // <run>/profile, exists
  std::vector<int> local_ranks;            // it exits once all of these have come and gone …
  std::chrono::seconds rank_timeout{600};  // … or did not come in this time
  std::chrono::milliseconds sample_period{500};
  std::string nvml_library = host::kNvmlLibrary;  // tests name another
  std::optional<PrometheusAddress> prometheus;    // none: it does not listen
  Json header;         // run id, versions, …: copied into the first line of the agent's dump
  std::string socket;  // the name it listens under, free; empty: a new one
};

struct AgentProcess {
  Process process;     // in its own process group and session: a terminal's Ctrl-C does not reach it
  std::string socket;  // what Recorder::Options::agent_socket wants
};

// Starts bin/dtrain-agent, found relative to this library. Returns once it is ready for ranks; SystemError or Error
// with the reason when it is not. Its own output goes to <run>/logs/agent-<id>.log where that folder exists. When this
// process dies, it ends by itself as soon as no rank is left.
AgentProcess start_agent(const AgentOptions& options);

// The agent's exit code where something could not be written; its log names what.
inline constexpr int kRecordsLost = 3;

// Waits for the agent to end, which it does when the last local rank has; after `patience` it is ordered to write
// what there is and end, even if ranks are still connected or never came; killed where it does not. Exit code 0:
// everything recorded is on disk.
ExitStatus finish_agent(AgentProcess& agent, std::chrono::milliseconds patience);

// An agent that is started again when it was killed or has failed, under the name that its ranks know: at once the
// first time, then after pauses that double from 1 s to 60 s. One that has lived for 10 minutes counts as the first. A
// ring outlives its reader, so the ranks' records of the time between are not lost unless their ring gets full. One
// thread.
class KeptAgent {
 public:
  // Starts it; throws as start_agent() does.
  explicit KeptAgent(AgentOptions options, const Clock& clock);

  // What look() has found and done.
  struct Change {
    std::optional<ExitStatus> ended;  // it had been killed or has failed
    pid_t started = 0;                // its new process; 0: not started yet
    std::string problem;              // why it could not be started
    std::string text() const;         // a sentence for the user
  };
  // Cheap: a system call while it lives.
  std::optional<Change> look();
  // As finish_agent(); of one that has ended, its status.
  ExitStatus finish(std::chrono::milliseconds patience);
  // Leaves it running: the destructor then does nothing.
  void detach() { agent_.process.detach(); }

  const std::string& id() const { return options_.agent_id; }
  const std::string& socket() const { return options_.socket; }
  pid_t pid() const { return agent_.process.pid(); }

 private:
  AgentOptions options_;
  const Clock& clock_;
  AgentProcess agent_;
  std::optional<ExitStatus> status_;  // of one that has ended
  bool down_ = false;                 // and is to be started again
  Nanoseconds started_at_{0};
  Nanoseconds next_start_{0};
  Nanoseconds pause_{0};
};

}  // namespace dtrain::profile
