// `dtrain launch` and `dtrain run` on one of several hosts that Kubernetes, or a user, starts it on (PET_*): this
// host's ranks, which join those of the other hosts. There is no launcher for all hosts. Rank 0 makes the run's folder.
// One thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/processes.h"
#include "dtrain/launcher/launch.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/keepers.h"
#include "dtrain/rank/stop_requests.h"
#include "dtrain/rank/trainer_status.h"
#include "keeper/node_recoveries.h"
#include "launch/attempts.h"
#include "launch/hang_watch.h"
#include "launch/hanging_ranks.h"
#include "launch/rank_process.h"

namespace dtrain::launcher {

// The settings with which this host's ranks start.
struct NodePlan {
  config::Experiment experiment;
  std::vector<std::string> command;    // the program
  std::vector<std::string> arguments;  // the experiment, the run and its options
  std::string library_path;            // empty: unchanged
  int ranks_here = 1;
  int threads = 1;                    // of each rank
  std::vector<int> numbers_of_hosts;  // with which the run may train, ascending
  int least_hosts = 1;                // as NodeEnvironment::least; fewer where resources.elastic allows it
  config::OnHostLoss on_host_loss = config::OnHostLoss::kWait;  // not kAuto
  std::filesystem::path run_dir;  // as the request names it, for a new run or one that goes on; empty: not named
};

// Returns with how many of the hosts that are present the run trains; the last ones beyond them wait. 0: too few.
int hosts_that_train(const NodePlan& plan, std::size_t present);

// ConfigError: the experiment cannot be run, or its ranks cannot be divided among the hosts.
NodePlan plan_node(const LaunchRequest& request, const rank::NodeEnvironment& node, const rank::Variables& variables);

// How an attempt has ended on one host, as its keeper tells the others.
struct NodeEnd {
  ExitCode code = ExitCode::kDone;  // the highest of its ranks
  bool failed = false;
  bool stopped = false;          // by a signal to its keeper
  std::string cause;             // of its own; empty: its ranks followed others, or did not fail
  bool may_pass = false;         // as Failure::may_pass
  std::vector<Json> hangs = {};  // the events "rank_hangs" of its ranks
};
Json to_json(const NodeEnd& end);
NodeEnd node_end_of(const Json& json);

// The watch of the keepers together over the ranks of all hosts, in one attempt. Each tells host 0 what its ranks do;
// host 0 decides by that whether ranks hang; and the keeper of such a rank says what it does, and kills it.
class NodeHangs {
 public:
  // `attempt`: the same on all hosts, and no other attempt's.
  NodeHangs(const config::Recovery& recovery, const rank::NodeEnvironment& node, int attempt);

  // Called again and again; looks twice a second. `ranks`: those of this host.
  std::optional<HangReport> look(const std::vector<WatchedRank>& ranks, rank::Keepers& keepers,
                                 const std::filesystem::path& run_dir);

 private:
  std::string key_of(int host) const;
  void decide(rank::Keepers& keepers);

  const bool watches_;
  const rank::NodeEnvironment& node_;
  const std::string key_;
  const SystemClock clock_;
  HangWatch watch_;
  Nanoseconds next_look_{0};
  int looks_ = 0;
  std::vector<int> last_looks_;  // on host 0: of each host, when it decided last
  bool is_decided_ = false;
};

// The ranks of one attempt on this host.
class NodeRanks {
 public:
  // Starts them. `run_dir`: where they go on with a run; empty: as the request says. `restart`: how often they were
  // started before. SystemError if a program cannot be started.
  NodeRanks(const NodePlan& plan, const rank::NodeEnvironment& node, const rank::Variables& variables,
            const std::filesystem::path& run_dir, int restart);

  // Waits until all have ended. Passes signals on. Once one has failed, or a host is lost, the others of this host get
  // some time to stop by themselves, and are then ended.
  // `pauses` is asked again and again, and returns true once the ranks are to save and to end: they are started again.
  NodeEnd wait(rank::LaunchSignals& signals, rank::Keepers& keepers, rank::TrainerStatus& status,
               NodeRecoveries& recoveries, const std::function<bool(bool trains)>& pauses);
  // When it was noticed that one has failed, or that a host is lost; empty: neither.
  const std::optional<std::chrono::steady_clock::time_point>& failed_at() const { return failed_at_; }
  // The run's folder, as the ranks have told it. Empty: rank 0 has not made it yet.
  const std::filesystem::path& run_dir() const { return run_dir_; }

 private:
  bool all_ended() const;
  void read_links(rank::TrainerStatus& status, NodeRecoveries& recoveries);
  void reap(RankProcess& rank);
  void look_for_hangs(rank::Keepers& keepers);
  void interrupt(int signal);
  void end_what_hangs(bool without_host);
  void pause_if(const std::function<bool(bool trains)>& pauses);
  bool is_failure(const ExitStatus& status) const;
  NodeEnd end() const;

  const bool waits_for_hosts_;
  std::vector<RankProcess> ranks_;
  NodeHangs hangs_;
  std::optional<HangReport> hang_;
  std::filesystem::path run_dir_;
  bool trains_ = false;  // rank 0, which is of this host, has done a batch
  std::optional<std::chrono::steady_clock::time_point> failed_at_;
  std::optional<std::chrono::steady_clock::time_point> interrupted_at_;
};

}  // namespace dtrain::launcher
