// The facts of a rank when it starts, for its other parts: how it was started, where it runs, what it trains, and the
// connection to its launcher. Plain values, and a class.
#pragma once

#include <memory>
#include <string>

#include "compare_ranks.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/log.h"
#include "dtrain/config/batch_split.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/network.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/launcher_link.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::rank {

struct RankFiles;

// The start of this process, and the host on which it runs.
struct RankIdentity {
  RankOptions options;
  RankEnvironment environment;
  host::HostIdentity host;
  Nanoseconds process_started{0};

  const comm::World& world() const { return environment.world; }
  bool is_rank_0() const { return environment.world.rank == 0; }
};

// Returns the start of this process on the monotonic clock.
Nanoseconds process_start(const Clock& clock);

// The experiment, how its batches are divided among the ranks, and the GPUs that this rank may use.
struct Assignment {
  config::Experiment experiment;
  config::BatchSplit split;
  LogicalRanks logical;
  config::SlotType slot_type = config::SlotType::kCpu;  // as the launcher decided; without one the experiment's
  GpuView gpus;                                         // not looked at if slot_type is kCpu
};

// Returns the "versions" of plan.json and of the dumps: the program's and dtrain's.
Json versions_of(const RankOptions& options);

// The connection of a rank to the `dtrain launch` that started it: the launcher of the whole run, directly or through
// mpirun or srun, or the keeper of its host (keepers.h). Threads as in launcher_link.h.
class LauncherConnection {
 public:
  // Reads the run's secret if it is in a file. Throws as SocketLink and PlaneLink do.
  LauncherConnection(const RankIdentity& identity, const Logger& log);

  LauncherLink& link() { return *link_; }
  PlaneLink* plane() { return plane_; }              // the same link if mpirun or srun started this rank; else null
  const std::string& name() const { return name_; }  // "the launcher (pid 4711)"
  // Returns the secret that the ranks share for their control plane; empty: rank 0 makes one.
  const std::string& ranks_secret() const { return contact_.secrets.ranks; }
  // Removes the secret file, on the first rank of each host. Called once every rank of this host has read it.
  void remove_secret_file(const comm::World& world) const;

 private:
  LauncherContact contact_;  // empty in a child of the launcher or of a keeper
  std::string name_;
  PlaneLink* plane_ = nullptr;
  std::unique_ptr<LauncherLink> link_;
};

// Opens the run's folder, which all hosts must see, and on rank 0 also its lock and its events: a new folder, or with
// --continue that of the run, in which the files of the attempt before are put aside. Logs the plan's warnings and
// where a run goes on. Collective over `control`. ConfigError if the run is in progress, or as create_run_folder(),
// check_checkpoint_storage(), check_goes_on() and check_storage_stays(); the other ranks throw one that refers to rank
// 0.
void open_own_run(comm::ControlPlane& control, const RankIdentity& identity, const Assignment& assignment,
                  const RankHosts& hosts, const RankGpus& gpus, RankFiles& files, const Logger& log);

}  // namespace dtrain::rank
