// `dtrain agent list` and `dtrain slot list`.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "commands.h"
#include "dtrain/launcher/launch.h"
#include "dtrain/launcher/user_ledger.h"
#include "table.h"

namespace dtrain::cli {
namespace {

using scheduler::ClusterAgents;

Cell or_nothing(bool known, const Cell& value) {
  return known ? value : Cell();
}

// The task that holds each slot: GPUs by their UUIDs, other slots by agent and index.
struct HeldSlots {
  std::map<std::string, scheduler::TaskId> gpus;
  std::map<std::string, std::map<int, scheduler::TaskId>> others;
};
using Holders = std::optional<HeldSlots>;  // nothing where the ledger cannot be read

Holders read_holders() {
  try {
    const SystemClock clock;
    Holders holders{std::in_place};
    for (const scheduler::Task& task : launcher::open_user_ledger(clock).list(scheduler::Which::kNotEnded)) {
      for (const scheduler::ClaimedShare& share : task.claim) {
        for (const std::string& gpu : share.gpus) holders->gpus[gpu] = task.id;
        for (const std::vector<int>& cores : share.cores) {
          for (const int core : cores) holders->others[share.agent][core] = task.id;
        }
        if (!share.gpus.empty() || !share.cores.empty()) continue;
        for (const int slot : share.slots) holders->others[share.agent][slot] = task.id;
      }
    }
    return holders;
  } catch (const Error& error) {
    std::fprintf(stderr, "dtrain: warning: cannot read which tasks hold which slots: %s\n", error.what());
    return std::nullopt;
  }
}

// Returns the tasks that hold slots of the agent, by the index of the slot.
std::map<int, scheduler::TaskId> held_of(const Holders& holders, const scheduler::ClusterAgent& agent) {
  std::map<int, scheduler::TaskId> held;
  if (!holders) return held;
  for (const scheduler::ClusterSlot& slot : agent.slots) {
    if (slot.index < 0) continue;
    if (!slot.gpu_uuid.empty()) {
      const auto found = holders->gpus.find(slot.gpu_uuid);
      if (found != holders->gpus.end()) held[slot.index] = found->second;
    } else if (const auto others = holders->others.find(agent.agent.id); others != holders->others.end()) {
      const auto found = others->second.find(slot.index);
      if (found != others->second.end()) held[slot.index] = found->second;
    }
  }
  return held;
}

std::string list_agents(const ClusterAgents& cluster, const Holders& holders, ListFormat format) {
  Table table({{"id"}, {"host"}, {"slots"}, {"cores"}, {"free"}, {"slot_type"}, {"resource_pool"}, {"here"}}, format);
  for (const scheduler::ClusterAgent& cluster_agent : cluster.agents) {
    const config::Agent& agent = cluster_agent.agent;
    const int held = static_cast<int>(held_of(holders, cluster_agent).size());
    const int units = cluster_agent.of_cores ? static_cast<int>(cluster_agent.slots.size()) : agent.slots;
    table.add({agent.id, agent.host, or_nothing(!cluster_agent.of_cores, agent.slots),
               or_nothing(cluster_agent.of_cores, units), or_nothing(holders.has_value(), units - held),
               config::to_string(agent.slot_type), agent.resource_pool, cluster_agent.here});
  }
  return table.finish();
}

std::string list_slots(const ClusterAgents& cluster, const Holders& holders, ListFormat format) {
  Table table({{"agent"},
               {"slot"},
               {"core"},
               {"task"},
               {"slot_type"},
               {"cpus"},
               {"node"},
               {"gpu"},
               {"uuid"},
               {"name"},
               {"memory_bytes", Table::Unit::kBytes, "memory"},
               {"health"}},
              format);
  for (const scheduler::ClusterAgent& cluster_agent : cluster.agents) {
    const auto held = held_of(holders, cluster_agent);
    for (const scheduler::ClusterSlot& slot : cluster_agent.slots) {
      const bool gpu = slot.is_gpu();
      const auto holder = held.find(slot.index);
      const bool core = cluster_agent.of_cores;
      table.add({cluster_agent.agent.id, or_nothing(slot.index >= 0 && !core, slot.index), or_nothing(core, slot.index),
                 holder == held.end() ? Cell() : Cell(holder->second), config::to_string(cluster_agent.agent.slot_type),
                 or_nothing(!slot.cpus.empty(), slot.cpus), or_nothing(core && cluster_agent.here, slot.node),
                 or_nothing(slot.gpu >= 0, slot.gpu), or_nothing(gpu, slot.gpu_uuid), or_nothing(gpu, slot.gpu_name),
                 or_nothing(slot.gpu_memory > 0, slot.gpu_memory),
                 or_nothing(gpu, slot.problem.empty() ? Cell("ok") : Cell(slot.problem))});
    }
  }
  return table.finish();
}

// Returns a text for people: slots that no file declares cannot be listed.
const char* how_cores_divide(const ClusterAgents& cluster) {
  const bool of_cores = std::any_of(cluster.agents.begin(), cluster.agents.end(),
                                    [](const scheduler::ClusterAgent& agent) { return agent.of_cores; });
  return of_cores ? "; an experiment divides its cores among its slots (resources.cores_per_slot)" : "";
}

void add_list(CLI::App& parent, const std::string& about, const std::string& footer,
              const std::function<std::string(const ClusterAgents&, const Holders&, ListFormat)>& list) {
  auto file = std::make_shared<std::string>();
  CLI::App* command = parent.add_subcommand("list", about);
  command->add_option("--cluster", *file, "A cluster file (YAML) or a hostfile of MPI (default: as for dtrain launch)")
      ->type_name("FILE");
  const auto format = add_list_format(*command);
  command->footer(footer);
  command->callback([=] {
    const ClusterAgents cluster = launcher::find_cluster(*file);
    for (const std::string& warning : cluster.warnings) std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
    if (*format == ListFormat::kText) std::printf("cluster: %s%s\n", cluster.source.c_str(), how_cores_divide(cluster));
    std::fputs(list(cluster, read_holders(), *format).c_str(), stdout);
  });
}

}  // namespace

void add_agent(CLI::App& app, ExitCode*) {
  CLI::App* command = app.add_subcommand("agent", "List the agents of the cluster: machines, or parts of them");
  command->require_subcommand(1);
  add_list(
      *command, "List the agents of the cluster",
      "The cluster is --cluster, or else the first that exists of $DTRAIN_CLUSTER, ./cluster.yaml,\n"
      "~/.config/dtrain/cluster.yaml, the Slurm allocation of this shell, this machine (its GPUs, or its cores if\n"
      "it has none). No other host is contacted. Where no file declares slots, cores are counted: an experiment takes\n"
      "all of them, or resources.cores_per_slot for each of its slots.",
      list_agents);
}

void add_slot(CLI::App& app, ExitCode*) {
  CLI::App* command = app.add_subcommand("slot", "List the slots that ranks run on: GPUs, or shares of the cores");
  command->require_subcommand(1);
  add_list(*command, "List the slots of the cluster",
           "For this machine the list also has the CPUs and the GPU of each slot, and what is wrong with a GPU; a GPU\n"
           "with a problem is no slot and has no number. CUDA_VISIBLE_DEVICES restricts which GPUs are slots. A\n"
           "slot's task is the launch that holds it (dtrain task list). Where no file declares slots, the cores are "
           "listed,\n"
           "each with its NUMA node. No other host is contacted.",
           list_slots);
}

}  // namespace dtrain::cli
