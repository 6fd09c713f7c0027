// The watch for ranks whose process is stopped (SIGSTOP), where no launcher and no keeper of this host watches them.
// Such a process sends no heartbeats, though its host answers, and all others would wait for it. Rank 0 watches the
// others, and they watch rank 0, each on a thread of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/base/log.h"
#include "dtrain/comm/control.h"

namespace dtrain::rank {

class StoppedRanks {
 public:
  // Collective. A rank that has sent nothing for `patience` and a few seconds fails the run, with that as the cause,
  // and is killed if it is on this host. `host_name`: of this host. `control` outlives this object.
  StoppedRanks(comm::ControlPlane& control, const std::string& host_name, std::chrono::milliseconds patience,
               Logger log);
  ~StoppedRanks();
  StoppedRanks& operator=(StoppedRanks&&) = delete;

 private:
  using SteadyClock = std::chrono::steady_clock;
  struct Peer {
    int rank;
    std::int64_t pid;
    std::string host_name;
    bool is_here;  // its process is on this host, and has the same number for this process
    std::optional<SteadyClock::time_point> silent_since;
  };

  void watch();
  void look();
  void end(const Peer& peer, std::chrono::nanoseconds silent);

  comm::ControlPlane& control_;
  const std::chrono::milliseconds patience_;
  const Logger log_;
  std::vector<Peer> peers_;
  std::optional<SteadyClock::time_point> last_look_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace dtrain::rank
