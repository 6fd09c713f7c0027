// Comparisons of the ranks of a run once they are connected: their hosts and their experiments. Functions that take
// `control` are collective; if the ranks do not fit together, every rank throws the same AgreedError.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/control.h"
#include "dtrain/config/experiment.h"
#include "dtrain/config/resources.h"
#include "dtrain/host/gpus.h"
#include "dtrain/host/network.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/plan_file.h"

namespace dtrain::rank {

// The host of every rank. Plain value.
class RankHosts {
 public:
  struct Host {
    std::string key;   // identifies the host (dtrain/host/network.h)
    std::string name;  // for messages and file names
  };
  // `of_rank`: the host of every rank, in rank order.
  RankHosts(Host here, std::vector<Host> of_rank) : here_(std::move(here)), of_rank_(std::move(of_rank)) {}

  const Host& here() const { return here_; }
  const Host& of(int rank) const { return of_rank_[static_cast<std::size_t>(rank)]; }
  std::vector<int> ranks_here() const;
  std::size_t count() const;  // number of hosts
  int most_ranks() const;     // the most ranks on one host
  // Returns the name of this host's monitor: the host's name, with `rank` appended if another host shares it.
  std::string monitor_name(int rank) const;

 private:
  Host here_;
  std::vector<Host> of_rank_;
};

// `started_by` is for messages. `several_allowed`: the ranks may be on several hosts.
RankHosts compare_hosts(comm::ControlPlane& control, const host::HostIdentity& here, const std::string& started_by,
                        bool several_allowed);
// `mode`: what the ranks do, if they do not train as usual ("--evaluate").
void compare_experiments(comm::ControlPlane& control, const config::Experiment& experiment, const std::string& mode);
// Checks that all hosts see the folder that rank 0 has made.
void check_folder_is_shared(comm::ControlPlane& control, const RankHosts& hosts, const std::filesystem::path& folder);

// Returns the communicator's backend for ranks on these hosts. `wanted`: empty: auto. Not collective: every rank gets
// the same result.
comm::Backend backend_for(const std::optional<comm::Backend>& wanted, const RankHosts& hosts, bool has_mpi);

// The GPU on which each rank trains. All ranks decide alike from what each of them sees. NVML looks at the GPUs, not
// CUDA, which would take memory on every GPU that it touches.

// The GPUs that one rank sees. Plain value.
struct GpuView {
  std::vector<host::VisibleGpu> gpus;  // in CUDA's order
  bool is_order_known = true;          // false: CUDA may number them in another order
  std::string shares_as;               // see shares_as() in compare_ranks.cpp
  std::string why_none;                // if there are none
  bool any_unusable = false;           // there are some, but slot_type: auto leaves them out, and why_none says why
};

// auto leaves out GPUs that the program's libtorch cannot use. Waits for the driver, with a deadline. Called where no
// other thread reads or sets variables.
GpuView look_at_visible_gpus(config::SlotType wanted, const Variables& variables);

// Plain value.
struct RankGpus {
  bool on_gpus = false;
  std::optional<int> cuda_index;                // of this rank's GPU; empty: it trains on the CPU
  std::vector<std::optional<PlacedGpu>> ranks;  // of each rank, where it is known; empty: they train on CPUs
  std::string why_cpu;                          // if slot_type: auto finds too few GPUs
  std::vector<std::string> warnings;            // GPUs that other processes use, too
};

// Collective, except for kCpu. A rank uses the GPU of its local rank, or the only one that it sees. kAuto: GPUs if
// every host has enough, CPUs if none has. `look_for_others`: looks for other processes on the GPUs. AgreedError names
// host and GPUs: too few GPUs, some hosts with and others without, a GPU that two ranks would share, or one that other
// processes have for themselves.
RankGpus choose_gpus(comm::ControlPlane& control, const RankHosts& hosts, config::SlotType wanted, const GpuView& view,
                     bool look_for_others);

// AgreedError if the run compresses by PowerSGD and its GPUs are of several models: each rank computes the result from
// the same sums, and only equal GPUs are sure to give the same bits.
void check_one_model(const config::Experiment& experiment, const RankGpus& gpus);

}  // namespace dtrain::rank
