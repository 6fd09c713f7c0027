// What a rank knows before it connects to the others: how it was started, where it runs, what it trains. Plain values.
#pragma once

#include "dtrain/base/clock.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/identity.h"
#include "dtrain/run/rank_session.h"
#include "dtrain/scheduler/batch_split.h"
#include "environment.h"
#include "rank/rank_gpus.h"

namespace dtrain::run {

struct RankIdentity {
  RankOptions options;
  RankEnvironment environment;
  host::HostIdentity host;
  Nanoseconds process_started{0};

  const comm::World& world() const { return environment.world; }
  bool is_rank_0() const { return environment.world.rank == 0; }
};

// The start of this process on the monotonic clock.
Nanoseconds process_start(const Clock& clock);

// Reads the environment and the host, and removes from the environment what child processes must not inherit. Called
// before other threads exist. ConfigError as read_rank_environment().
void read_identity(RankIdentity& identity);

// The experiment, how its batches are divided among the ranks, and the GPUs that this rank may use.
struct Assignment {
  config::Experiment experiment;
  scheduler::BatchSplit split;
  config::SlotType slot_type = config::SlotType::kCpu;  // as the launcher decided; without one the experiment's
  GpuView gpus;                                         // not looked at if slot_type is kCpu
};

// Sets the experiment's environment variables unless the launcher has. Called before other threads exist. ConfigError
// if the experiment cannot be run: ranks without a launcher share a screen, so only rank 0's error gives the reason.
Assignment read_assignment(const RankIdentity& identity);

// The "versions" of plan.json and of the dumps: the program's and dtrain's.
Json versions_of(const RankOptions& options);

}  // namespace dtrain::run
