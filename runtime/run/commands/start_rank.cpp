#include "dtrain/run/start_rank.h"

#include <algorithm>
#include <cerrno>

#include <sched.h>
#include <unistd.h>

#include "commands/gpus_of_rank.h"
#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/host/identity.h"
#include "dtrain/host/reachable_address.h"
#include "dtrain/scheduler/local_slots.h"
#include "environment.h"
#include "libtorch.h"

namespace dtrain::run {
namespace {

void bind_to(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) throw SystemError("cannot bind a rank to its cores", errno);
}

// The cores of a rank on CPUs. If a cluster file declares more slots than this host has cores, ranks share cores, as on
// the launching host.
ShareOfRank share_of(const SlotOfRank& slot) {
  const auto cpus = scheduler::local_slots(slot.slots).slots.at(static_cast<std::size_t>(slot.index)).cpus;
  return {.cpus = cpus, .threads = static_cast<int>(cpus.size())};
}

}  // namespace

void start_rank(const std::vector<std::string>& command) {
  const std::string host = host::host_identity().name;
  const Variables variables = process_variables();
  const RankEnvironment environment = read_rank_environment(variables);
  if (!is_program(command.front())) {
    throw ConfigError("host " + host + ": there is no program " + command.front(),
                      "every host needs the program under the same path");
  }
  std::vector<std::pair<std::string, std::string>> set;
  if (!variables.contains("OMP_WAIT_POLICY")) set.emplace_back("OMP_WAIT_POLICY", "passive");
  const auto slot = slot_of_rank(variables, environment.world.rank);
  std::optional<ShareOfRank> share;
  if (environment.is_placed_on_gpus()) {
    share = gpus_of_rank(variables, environment.world.rank, host);
    set.insert(set.end(), share->variables.begin(), share->variables.end());
  } else if (slot) {
    share = share_of(*slot);
  }
  if (slot && share && !share->cpus.empty()) {
    bind_to(share->cpus);
    if (!variables.contains("OMP_NUM_THREADS")) {
      set.emplace_back("OMP_NUM_THREADS", std::to_string(std::max(1, share->threads)));
    }
  }
  // NCCL takes only names of interfaces, and these may differ between hosts. "=" means exactly this name.
  if (!environment.network_interface.empty() && !variables.contains("NCCL_SOCKET_IFNAME")) {
    set.emplace_back("NCCL_SOCKET_IFNAME",
                     "=" + host::interface_of(environment.network_interface, "host " + host + ": "));
  }
  const std::string libraries = find_libraries(command.front(), variables);
  if (!libraries.empty()) set.emplace_back("LD_LIBRARY_PATH", libraries);
  set_process_variables(set);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments.front(), arguments.data());
  throw SystemError("host " + host + ": cannot start " + command.front(), errno);
}

}  // namespace dtrain::run
