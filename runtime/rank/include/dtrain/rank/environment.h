// The environment variables that dtrain reads: which rank of a run this process is, and where dtrain keeps its own
// files. Plain values; any thread, except for the functions that change variables.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "dtrain/comm/control.h"

namespace dtrain::rank {

using Variables = std::map<std::string, std::string>;

// Null: the variable is not set.
inline const std::string* find(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? nullptr : &found->second;
}

// Returns the environment variables of this process.
Variables process_variables();
// Removes a variable; /proc still shows it as the process was started. Called before other threads exist.
void unset_process_variable(const std::string& name);
// Adds or replaces variables. Called before other threads exist, because those may be reading them.
void set_process_variables(const std::vector<std::pair<std::string, std::string>>& variables);

// The facts that `dtrain launch` passes to each of its child ranks, besides the rank's place in the world.
struct Handover {
  int link_fd = -1;  // the rank's end of the link to the launcher
  pid_t launcher_pid = 0;
  std::filesystem::path run_dir;     // exists, holds experiment.yaml and plan.json
  std::filesystem::path rendezvous;  // the file into which rank 0 writes its address and the secret
  std::string agent_id;
  std::string monitor_socket;
  bool on_gpus = false;                   // the launcher has placed the ranks on GPUs
  std::filesystem::path resume_from;      // the checkpoint that training goes on from; empty: it begins anew
  std::filesystem::path memory_folder{};  // for states in memory; empty: none are kept
  // Memory that ranks of an earlier attempt have shared (RankSession::keep_on_host()): descriptors by its name.
  std::map<std::string, int> kept_memory{};
};

// The secrets that prove that a rank belongs to a run: to the launcher, and to the other ranks.
struct LaunchSecrets {
  std::string launch;
  std::string ranks;
};
// ConfigError if the text is not "<launch>.<ranks>".
LaunchSecrets launch_secrets_of(const std::string& text);

// The address and secrets by which ranks that mpirun or srun starts for `dtrain launch` reach the launcher.
struct LauncherContact {
  std::string address;
  std::uint16_t port = 0;
  std::filesystem::path secret_file;  // on every host; empty: it could not be written there, and `secrets` is set
  LaunchSecrets secrets;
  bool on_gpus = false;  // as in Handover
};

// The address of rank 0 for ranks that neither MPI nor a launcher connects: MASTER_ADDR and MASTER_PORT.
struct MasterAddress {
  std::string name;  // of rank 0's host, which may not resolve yet, or its address
  std::uint16_t port = 0;
  bool is_served = false;  // torchrun's own store listens there
};

// The place of a host among the hosts of a job, as Kubernetes or a user sets it (PET_*) before anything has started
// ranks there.
struct NodeEnvironment {
  int nodes = 1;
  int least = 1;       // the run may begin, and go on, with so many hosts; PET_NNODES=3 names one number for both
  int rank = 0;        // of this host
  int ranks_here = 0;  // PET_NPROC_PER_NODE; 0: not said, or a word such as auto
  MasterAddress master;
  std::chrono::seconds last_call{30};  // how long `least` hosts wait for more
  bool may_change() const { return least < nodes; }
  std::string job() const { return "pet-" + master.name + "-" + std::to_string(master.port); }
};

// Empty: PET_NNODES is not set. ConfigError names the variable that is missing or has a wrong value.
std::optional<NodeEnvironment> read_node_environment(const Variables& variables);

struct RankEnvironment {
  comm::World world;
  // "dtrain launch", "Open MPI", "Slurm", "torchrun", "RANK and WORLD_SIZE", "DTRAIN_RANK and DTRAIN_WORLD_SIZE",
  // "nothing" (a single rank)
  std::string started_by;
  std::string job;                          // shared by all ranks of this job alone; names the rendezvous file
  std::optional<Handover> handover;         // if `dtrain launch` itself started the rank
  std::optional<LauncherContact> launcher;  // if mpirun or srun started the rank for it
  bool names_local_ranks = true;            // false: all ranks are expected on one host, as nothing says otherwise
  bool has_mpi = false;                     // MPI connects the ranks: started by mpirun, or by srun with PMIx
  std::optional<MasterAddress> master;      // empty: not said
  std::string network_interface;          // DTRAIN_NETWORK_INTERFACE: a name or a network, between hosts; empty: chosen
  std::filesystem::path run_secret_file;  // DTRAIN_RUN_SECRET_FILE: the user's file with the run's secret; empty: none
  std::filesystem::path error_file;       // the file in which torchrun looks for the cause of a failure; empty: none
  int keeper_fd = -1;                     // the rank's end of the link to its host's keeper (keepers.h); -1: none
  int keeper_host = 0;                    // the number of that host, PET_NODE_RANK
  int restart = 0;                        // how often torchrun or the keepers have started the ranks again
  std::optional<int> most_restarts;       // torchrun's --max-restarts; empty: torchrun has not started the ranks

  // `dtrain launch` started this rank: as its own child, or through mpirun or srun.
  bool is_launched() const { return is_child() || launcher.has_value(); }
  bool is_child() const { return handover.has_value(); }
  bool is_kept() const { return keeper_fd >= 0; }
  // True if the launcher has placed the ranks on GPUs; false without a launcher, too.
  bool is_placed_on_gpus() const { return handover ? handover->on_gpus : launcher && launcher->on_gpus; }
};

// dtrain's own variables come first, then torchrun's if torchrun itself has set them, Open MPI's, Slurm's,
// RANK/WORLD_SIZE set by others, and PET_* of a pod with one rank; without any of them this is a single rank.
// docs/launching.md lists them. ConfigError names the variable that is missing or has a wrong value.
RankEnvironment read_rank_environment(const Variables& variables);

// The launcher's side: returns the variables to set for a child rank.
Variables rank_variables(const comm::World& world, const Handover& handover);
// Returns the same for ranks that mpirun or srun starts, which set each rank's number themselves.
Variables launcher_variables(const LauncherContact& launcher);

// The cores of its host that a rank gets, if the launcher names them (DTRAIN_SLOTS, an entry for each rank).
struct SlotOfRank {
  int index = 0;          // its slot
  int slots = 1;          // of the agent: they divide the host's cores
  bool of_cores = false;  // `slots` are those of this run alone, and are made of cores as on the launching host
  std::vector<int> cpus;  // exactly these, without index and slots; empty: not known
  int cores = 0;          // number of the slot's cores for the rank; 0: all
  int threads = 0;        // of libtorch; 0: one for each core
};
// "1/4", "1:4" (of_cores) or "=0-3+8" (cpus); then "x2" (cores) and "t8" (threads) if they are not 0.
std::string to_text(const SlotOfRank& slot);
// Empty: the launcher leaves the rank where it is. ConfigError: there is none for this rank.
std::optional<SlotOfRank> slot_of_rank(const Variables& variables, int rank);

// Returns the folder for rendezvous files, private to this user (0700), made if missing: $XDG_RUNTIME_DIR/dtrain where
// that variable names a private folder, else /tmp/dtrain-UID. Where something else has that name, a folder of another
// user for example, it is /tmp/dtrain-UID-XXXXXX with random letters; the processes of a user agree on it, because they
// all take the first by name that is theirs, and make one only if there is none. SystemError if none can be made, or if
// $XDG_RUNTIME_DIR/dtrain is open to others.
std::filesystem::path private_folder(const Variables& variables);

// Returns the folder for results that later runs use (tuned plans): $XDG_CACHE_HOME/dtrain, else ~/.cache/dtrain. It
// may not exist yet. Empty: neither variable is an absolute path.
std::filesystem::path cache_folder(const Variables& variables);

// Returns the folder of the ledger: $DTRAIN_STATE_DIR, else $XDG_STATE_HOME/dtrain, else ~/.local/state/dtrain, else
// (none of them is set) private_folder(). It may not exist yet. ConfigError: DTRAIN_STATE_DIR is not an absolute path.
std::filesystem::path state_folder(const Variables& variables);

// Returns the file of a program's name without a slash: in the folder `beside`, else in PATH. Empty: there is none.
std::filesystem::path find_program(const std::string& name, const std::filesystem::path& beside,
                                   const Variables& variables);

}  // namespace dtrain::rank
