#include "dtrain/run/start_rank.h"

#include <cerrno>

#include <sched.h>
#include <unistd.h>

#include "commands/share_of_rank.h"
#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/host/cpu.h"
#include "dtrain/host/network.h"
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
  for (const auto& variable : wait_of_threads(variables)) set.push_back(variable);
  const auto slot = slot_of_rank(variables, environment.world.rank);
  std::optional<ShareOfRank> share;
  CoresOfHost here{.name = host, .by_slurm = environment.started_by == "Slurm"};
  if (slot) {
    here.cores = host::usable_cores();
    here.cpu_limit = host::cpu_limit();
  }
  if (environment.is_placed_on_gpus()) {
    share = gpus_of_rank(variables, environment.world.rank, host);
    set.insert(set.end(), share->variables.begin(), share->variables.end());
    if (slot) keep_to_slot(*share, *slot, here);
  } else if (slot) {
    share = cores_of_rank(*slot, here);
  }
  if (slot && share && !share->cpus.empty()) {
    bind_to(share->cpus);
    if (!variables.contains("OMP_NUM_THREADS")) set.emplace_back("OMP_NUM_THREADS", std::to_string(share->threads));
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
