// `dtrain agent list` and `dtrain slot list`.
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "commands.h"
#include "dtrain/run/cluster.h"
#include "table.h"

namespace dtrain::cli {
namespace {

using scheduler::ClusterAgents;

Json or_null(bool known, const Json& value) {
  return known ? value : Json();
}

Table agents_of(const ClusterAgents& cluster) {
  Table table({{"id"}, {"host"}, {"slots"}, {"slot_type"}, {"resource_pool"}, {"here"}});
  for (const scheduler::ClusterAgent& one : cluster.agents) {
    const config::Agent& agent = one.agent;
    table.add({agent.id, agent.host, agent.slots, config::to_string(agent.slot_type), agent.resource_pool, one.here});
  }
  return table;
}

Table slots_of(const ClusterAgents& cluster) {
  Table table({{"agent"},
               {"slot"},
               {"slot_type"},
               {"cpus"},
               {"gpu"},
               {"uuid"},
               {"name"},
               {"memory_bytes", Table::Unit::kBytes, "memory"},
               {"health"}});
  for (const scheduler::ClusterAgent& one : cluster.agents) {
    for (const scheduler::ClusterSlot& slot : one.slots) {
      const bool gpu = slot.gpu >= 0;
      table.add({one.agent.id, or_null(slot.index >= 0, slot.index), config::to_string(one.agent.slot_type),
                 or_null(!slot.cpus.empty(), slot.cpus), or_null(gpu, slot.gpu), or_null(gpu, slot.gpu_uuid),
                 or_null(gpu, slot.gpu_name), or_null(slot.gpu_memory > 0, slot.gpu_memory),
                 or_null(gpu, slot.problem.empty() ? "ok" : slot.problem)});
    }
  }
  return table;
}

void add_list(CLI::App& parent, const std::string& about, const std::string& footer,
              const std::function<Table(const ClusterAgents&)>& make, int* exit_code) {
  auto file = std::make_shared<std::string>();
  CLI::App* command = parent.add_subcommand("list", about);
  command->add_option("--cluster", *file, "A cluster file (YAML) or a hostfile of MPI instead of the one that is found")
      ->type_name("FILE");
  const auto format = add_list_format(*command);
  command->footer(footer);
  command->callback([=] {
    const ClusterAgents cluster = run::find_cluster(*file);
    for (const std::string& warning : cluster.warnings) std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
    if (*format == ListFormat::kText) std::printf("cluster: %s\n", cluster.source.c_str());
    std::fputs(make(cluster).render(*format).c_str(), stdout);
    *exit_code = 0;
  });
}

}  // namespace

void add_agent(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("agent", "The machines of the cluster");
  command->require_subcommand(1);
  add_list(
      *command, "List the agents of the cluster",
      "The cluster is --cluster, else $DTRAIN_CLUSTER, ./cluster.yaml, ~/.config/dtrain/cluster.yaml, the Slurm\n"
      "allocation this shell is in, else this machine: its GPUs, or its cores where it has none. No host is asked.",
      agents_of, exit_code);
}

void add_slot(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("slot", "What ranks run on: GPUs, or shares of the cores");
  command->require_subcommand(1);
  add_list(*command, "List the slots of the cluster",
           "Of this machine's slots it says which CPUs or which GPU they are, and\n"
           "what is wrong with a GPU; such a one is no slot and has no number. No other host is asked.",
           slots_of, exit_code);
}

}  // namespace dtrain::cli
