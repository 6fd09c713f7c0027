// Starts the monitor of a host. It samples the system, writes the ranks' rings to profile/rank-NNNN.jsonl and
// its samples to profile/agent-<id>.jsonl, and exits after launcher and ranks.
//
// Any thread may call. The owner of a MonitorProcess must let it finish (finish_monitor) or detach() the process:
// destroying it kills the monitor.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/host/gpus.h"

namespace dtrain::profile {

// The address at which the monitor serves metrics to Prometheus. Every client that reaches this address can read them.
struct PrometheusAddress {
  std::string address = "127.0.0.1";  // numeric
  int port = 0;                       // 0: any free one, which the first line of the monitor's dump names
};

struct MonitorOptions {
  std::string agent_id;                    // the host's agent, in file names and records
  std::filesystem::path profile_folder;    // <run>/profile, which must exist
  std::vector<int> local_ranks;            // the monitor exits once all of these have connected and left
  std::chrono::seconds rank_timeout{600};  // it also exits after this time if no rank is connected
  std::chrono::milliseconds sample_period{500};
  std::string nvml_library = host::kNvmlLibrary;  // tests use another library
  std::optional<PrometheusAddress> prometheus;    // empty: it serves none
  Json header;         // run id, versions, …: copied into the first line of the monitor's dump
  std::string socket;  // the name of its socket, not in use; empty: a new name
};

struct MonitorProcess {
  Process process;     // in its own process group: a terminal's Ctrl-C does not reach it
  std::string socket;  // for Recorder::Options::monitor_socket
  UniqueFd report;     // its report about its start; none once that has been read
};

// Starts bin/dtrain-agent, found relative to this library. Returns once the monitor is ready for ranks; SystemError or
// Error with the reason if it does not become ready. Its output goes to <run>/logs/agent-<id>.log if that folder
// exists. If this process ends, the monitor ends as soon as no rank is left.
MonitorProcess start_monitor(const MonitorOptions& options);
// Do the same in two steps. In between ranks may be started: the monitor's socket accepts them already.
MonitorProcess begin_monitor(const MonitorOptions& options);
void await_monitor(MonitorProcess& monitor, const MonitorOptions& options);

// The monitor's exit code if something could not be written; its log says what.
inline constexpr int kRecordsLost = 3;

// Waits for the monitor to end, which it does after the last local rank. After `patience`, tells it to write what it
// has and to end, even if ranks are still connected or never connected. If it does not end then, kills it. Exit code 0:
// everything recorded is on disk.
ExitStatus finish_monitor(MonitorProcess& monitor, std::chrono::milliseconds patience);

// A monitor that is started again, under the same name, if it was killed or has failed. The first restart is immediate;
// the next ones follow after pauses that double from 1 s to 60 s. After a monitor has run for 10 minutes, the pauses
// begin anew. A ring outlives the monitor, so records are lost only if a rank's ring becomes full in the meantime. One
// thread.
class KeptMonitor {
 public:
  // Starts it; throws as start_monitor() does. With kBegun it may not be ready yet: await() must be called.
  enum class Start { kReady, kBegun };
  explicit KeptMonitor(MonitorOptions options, const Clock& clock, Start start = Start::kReady);
  // Throws as start_monitor() does. A monitor that a signal has ended meanwhile is look()'s to start again.
  void await();

  // The findings and actions of look().
  struct Change {
    std::optional<ExitStatus> ended;  // set: it was killed or has failed
    pid_t started = 0;                // its new process; 0: not started yet
    std::string problem;              // the reason for which it could not be started
    std::string text() const;         // a sentence for the user
  };
  // Cheap: one system call while the monitor lives.
  std::optional<Change> look();
  // Like finish_monitor(). If the monitor has already ended, returns its status.
  ExitStatus finish(std::chrono::milliseconds patience);
  // Leaves it running: the destructor then does nothing.
  void detach() { monitor_.process.detach(); }

  const std::string& id() const { return options_.agent_id; }
  const std::string& socket() const { return options_.socket; }
  pid_t pid() const { return monitor_.process.pid(); }

 private:
  MonitorOptions options_;
  const Clock& clock_;
  MonitorProcess monitor_;
  std::optional<ExitStatus> status_;  // of a monitor that has ended
  bool down_ = false;                 // and is to be started again
  Nanoseconds started_at_{0};
  Nanoseconds next_start_{0};
  Nanoseconds pause_{0};
};

}  // namespace dtrain::profile
