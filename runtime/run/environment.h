// Who this process is among the ranks of a run, and where dtrain keeps its own files: everything that is read from
// environment variables. No other file reads them. Plain values; any thread, but for set_process_variables().
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "dtrain/comm/world.h"

namespace dtrain::run {

using Variables = std::map<std::string, std::string>;

// Those of this process.
Variables process_variables();
// Takes one out of them; what this process was started with can still be seen in /proc. Before other threads exist.
void unset_process_variable(const std::string& name);
// Adds to (or replaces in) them. Before other threads exist: they may be reading.
void set_process_variables(const std::vector<std::pair<std::string, std::string>>& variables);

// What `dtrain launch` hands to each rank, beside its place in the world.
struct Handover {
  int link_fd = -1;  // the rank's end of the link to the launcher
  pid_t launcher_pid = 0;
  std::filesystem::path run_dir;     // exists, holds experiment.yaml and plan.json
  std::filesystem::path rendezvous;  // the file that rank 0 writes its address and the secret into
  std::string agent_id;
  std::string agent_socket;
};

// What ranks prove with that they belong to a run: to the launcher, and to each other.
struct LaunchSecrets {
  std::string launch;
  std::string ranks;
};
// ConfigError where the text ("<launch>.<ranks>") is something else.
LaunchSecrets launch_secrets_of(const std::string& text);

// How ranks that mpirun or srun starts for `dtrain launch` reach it.
struct LauncherContact {
  std::string address;
  std::uint16_t port = 0;
  std::filesystem::path secret_file;  // on every host; empty: the secrets are here, where that could not be had
  LaunchSecrets secrets;
};

struct RankEnvironment {
  comm::World world;
  // "dtrain launch", "Open MPI", "Slurm", "torchrun", "RANK and WORLD_SIZE", "DTRAIN_RANK and DTRAIN_WORLD_SIZE",
  // "nothing" (a single rank)
  std::string started_by;
  std::string job;                   // what all ranks of the job, and no other job, share: names the rendezvous file
  std::optional<Handover> handover;  // started by `dtrain launch` itself
  std::optional<LauncherContact> launcher;  // started for it, by mpirun or srun
  bool has_mpi = false;                     // MPI finds the other ranks: started by mpirun, or by srun with PMIx
  std::string network_interface;     // DTRAIN_NETWORK_INTERFACE: a name or a network, between hosts; empty: found
  std::filesystem::path error_file;  // where torchrun looks for the cause of a failure; empty: nowhere

  // `dtrain launch` started this rank: as its own child, or through mpirun or srun.
  bool is_launched() const { return is_child() || launcher.has_value(); }
  bool is_child() const { return handover.has_value(); }
};

// dtrain's own variables come first, then those that torchrun itself has set, Open MPI's, Slurm's, and RANK/WORLD_SIZE
// set by others; with none of them this is a single rank. docs/launching.md lists them. ConfigError names the variable
// that is missing or what is wrong with its value.
RankEnvironment read_rank_environment(const Variables& variables);

// The launcher's side of the same: what to set for a rank.
Variables rank_variables(const comm::World& world, const Handover& handover);
// The same for ranks that others start; those say who each rank is.
Variables launcher_variables(const LauncherContact& launcher);

// The slot of a rank on its agent, where the launcher divides the cores by slots (DTRAIN_SLOTS:
// "0/2,1/2").
struct SlotOfRank {
  int index = 0;
  int slots = 1;
};
std::optional<SlotOfRank> slot_of_rank(const Variables& variables, int rank);

// The folder for rendezvous files: private to this user (0700), made when missing. SystemError when it belongs to
// somebody else or is open to others.
std::filesystem::path private_folder(const Variables& variables);

// Where dtrain remembers what it has found out (tuned plans): $XDG_CACHE_HOME/dtrain, else ~/.cache/dtrain. It need not
// exist; empty: neither variable is an absolute path.
std::filesystem::path cache_folder(const Variables& variables);

// Where the ledger of tasks is: $DTRAIN_STATE_DIR, else $XDG_STATE_HOME/dtrain, else ~/.local/state/dtrain, else
// (where none of them is set) private_folder(). It need not exist. ConfigError: DTRAIN_STATE_DIR is
// not an absolute path.
std::filesystem::path state_folder(const Variables& variables);

// The file a program name without a slash stands for: beside `beside`, then in PATH. Empty: nowhere.
std::filesystem::path find_program(const std::string& name, const std::filesystem::path& beside,
                                   const Variables& variables);

}  // namespace dtrain::run
