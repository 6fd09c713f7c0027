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
#include "dtrain/host/network.h"
#include "dtrain/run/mock.h"

namespace dtrain::run {

// The host of every rank. Plain value.
class RankHosts {
 public:
  struct Host {
    std::string key;   // identifies the host (dtrain/host/identity.h)
    std::string name;  // for messages and file names
  };
  // `of_rank`: the host of every rank, in rank order.
  RankHosts(Host here, std::vector<Host> of_rank) : here_(std::move(here)), of_rank_(std::move(of_rank)) {}

  const Host& here() const { return here_; }
  const Host& of(int rank) const { return of_rank_[static_cast<std::size_t>(rank)]; }
  std::vector<int> ranks_here() const;
  std::size_t count() const;  // number of hosts
  int most_ranks() const;     // the most ranks on one host
  // Returns the name of this host's profiling agent: the host's name, with `rank` appended if another host shares it.
  std::string agent_name(int rank) const;

 private:
  Host here_;
  std::vector<Host> of_rank_;
};

// `started_by` is for messages. `several_allowed`: the ranks may be on several hosts.
RankHosts compare_hosts(comm::ControlPlane& control, const host::HostIdentity& here, const std::string& started_by,
                        bool several_allowed);
void compare_experiments(comm::ControlPlane& control, const config::Experiment& experiment, const Mock& mock);
// Checks that all hosts see the folder that rank 0 has made.
void check_folder_is_shared(comm::ControlPlane& control, const RankHosts& hosts, const std::filesystem::path& folder);

// Returns the communicator's backend for ranks on these hosts. `wanted`: empty: auto. Not collective: every rank gets
// the same result.
comm::Backend backend_for(const std::optional<comm::Backend>& wanted, const RankHosts& hosts, bool has_mpi);

}  // namespace dtrain::run
