// `dtrain agent list` and `dtrain slot list`.
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "commands.h"
#include "dtrain/run/cluster.h"
#include "dtrain/run/user_ledger.h"
#include "table.h"

namespace dtrain::cli {
namespace {

using scheduler::ClusterAgents;

Cell or_nothing(bool known, const Cell& value) {
  return known ? value : Cell();
}

// Which task holds which slot; nothing where the ledger cannot be read.
using Holders = std::optional<std::map<std::string, std::map<int, scheduler::TaskId>>>;

Holders read_holders() {
  try {
    const SystemClock clock;
    Holders holders{std::in_place};
    for (const scheduler::Task& task : run::open_user_ledger(clock).list(scheduler::Which::kNotEnded)) {
      for (const scheduler::ClaimedShare& share : task.claim) {
        for (const int slot : share.slots) (*holders)[share.agent][slot] = task.id;
      }
    }
    return holders;
  } catch (const Error& error) {
    std::fprintf(stderr, "dtrain: warning: cannot read which tasks hold which slots: %s\n", error.what());
    return std::nullopt;
  }
}

// Of the slots of `agent`, by their index. Training does not use GPUs yet: what tasks hold of an agent that has some
// are its cores.
std::map<int, scheduler::TaskId> held_of(const Holders& holders, const config::Agent& agent) {
  if (!holders || !holders->contains(agent.id) || agent.slot_type == config::AgentSlotType::kCuda) return {};
  std::map<int, scheduler::TaskId> held = holders->at(agent.id);
  held.erase(held.lower_bound(agent.slots), held.end());
  return held;
}

std::string list_agents(const ClusterAgents& cluster, const Holders& holders, ListFormat format) {
  Table table({{"id"}, {"host"}, {"slots"}, {"free"}, {"slot_type"}, {"resource_pool"}, {"here"}}, format);
  for (const scheduler::ClusterAgent& one : cluster.agents) {
    const config::Agent& agent = one.agent;
    const int held = static_cast<int>(held_of(holders, agent).size());
    table.add({agent.id, agent.host, agent.slots, or_nothing(holders.has_value(), agent.slots - held),
               config::to_string(agent.slot_type), agent.resource_pool, one.here});
  }
  return table.finish();
}

std::string list_slots(const ClusterAgents& cluster, const Holders& holders, ListFormat format) {
  Table table({{"agent"},
               {"slot"},
               {"task"},
               {"slot_type"},
               {"cpus"},
               {"gpu"},
               {"uuid"},
               {"name"},
               {"memory_bytes", Table::Unit::kBytes, "memory"},
               {"health"}},
              format);
  for (const scheduler::ClusterAgent& one : cluster.agents) {
    const auto held = held_of(holders, one.agent);
    for (const scheduler::ClusterSlot& slot : one.slots) {
      const bool gpu = slot.gpu >= 0;
      const auto holder = held.find(slot.index);
      table.add({one.agent.id, or_nothing(slot.index >= 0, slot.index),
                 holder == held.end() ? Cell() : Cell(holder->second), config::to_string(one.agent.slot_type),
                 or_nothing(!slot.cpus.empty(), slot.cpus), or_nothing(gpu, slot.gpu), or_nothing(gpu, slot.gpu_uuid),
                 or_nothing(gpu, slot.gpu_name), or_nothing(slot.gpu_memory > 0, slot.gpu_memory),
                 or_nothing(gpu, slot.problem.empty() ? Cell("ok") : Cell(slot.problem))});
    }
  }
  return table.finish();
}

void add_list(CLI::App& parent, const std::string& about, const std::string& footer,
              const std::function<std::string(const ClusterAgents&, const Holders&, ListFormat)>& list,
              int* exit_code) {
  auto file = std::make_shared<std::string>();
  CLI::App* command = parent.add_subcommand("list", about);
  command->add_option("--cluster", *file, "A cluster file (YAML) or a hostfile of MPI (default: as for dtrain launch)")
      ->type_name("FILE");
  const auto format = add_list_format(*command);
  command->footer(footer);
  command->callback([=] {
    const ClusterAgents cluster = run::find_cluster(*file);
    for (const std::string& warning : cluster.warnings) std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
    if (*format == ListFormat::kText) std::printf("cluster: %s\n", cluster.source.c_str());
    std::fputs(list(cluster, read_holders(), *format).c_str(), stdout);
    *exit_code = 0;
  });
}

}  // namespace

void add_agent(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("agent", "List the agents of the cluster: machines, or parts of them");
  command->require_subcommand(1);
  add_list(
      *command, "List the agents of the cluster",
      "The cluster is --cluster, or else the first that exists of $DTRAIN_CLUSTER, ./cluster.yaml,\n"
      "~/.config/dtrain/cluster.yaml, the Slurm allocation of this shell, this machine (its GPUs, or its cores if\n"
      "it has none). No other host is contacted.",
      list_agents, exit_code);
}

void add_slot(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("slot", "List the slots that ranks run on: GPUs, or shares of the cores");
  command->require_subcommand(1);
  add_list(
      *command, "List the slots of the cluster",
      "For this machine the list also has the CPUs or the GPU of each slot, and what is wrong with a GPU; a GPU\n"
      "with a problem is no slot and has no number. A slot's task is the launch that holds it (dtrain task list).\n"
      "No other host is contacted.",
      list_slots, exit_code);
}

}  // namespace dtrain::cli
