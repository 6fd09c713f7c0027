// The tables of the agents' samples and of the run's own files.
#include <cmath>

#include "dtrain/analysis/export.h"
#include "dtrain/base/json.h"
#include "dtrain/base/json_number.h"
#include "export/table_rows.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

// Makes a table with rows of agents: `lines` passes on the items of one agent. A host's ranks share its clock.
template <typename... Items>
Table of_agents(std::string name, auto lines, auto fields) {
  const auto each = [lines](const RunProfile& run, const auto& emit) {
    for (const AgentProfile& agent : run.agents) {
      std::optional<int> rank;
      for (const RankProfile& candidate : run.ranks) {
        if (!rank && run.agent_of(candidate) == &agent) rank = candidate.rank;
      }
      lines(agent, [&](const Items&... items) { emit(rank, agent, items...); });
    }
  };
  const auto with_agent = [fields](auto& row, auto& agent, auto&... items) {
    row("agent", agent.agent);
    fields(row, agent, items...);
  };
  return make_table<AgentProfile, Items...>(std::move(name), each, with_agent);
}

struct SystemValue {
  std::string metric;
  std::optional<std::int64_t> device;
  double value = 0;
};

// The table has a row for each value, because the metrics depend on the machine.
Table system() {
  const auto lines = [](const AgentProfile& agent, const auto& emit) {
    for (const SystemLine& line : agent.samples) {
      for (const auto& [name, value] : line.metrics) emit(line, {name, std::nullopt, value});
      for (std::size_t core = 0; core < line.cpu_util_per_core.size(); ++core) {
        emit(line, {"cpu_util_per_core", static_cast<std::int64_t>(core), line.cpu_util_per_core[core]});
      }
      for (const auto& [index, metrics] : line.gpus) {
        for (const auto& [name, value] : metrics) emit(line, {name, index, value});
      }
    }
  };
  return of_agents<SystemLine, SystemValue>("system", lines, [](auto& row, auto& agent, auto& line, auto& value) {
    row("host", agent.host);
    row({"time_ns", Key::kMoment}, line.time_ns);
    row("interval_ns", line.interval_ns);
    row("metric", value.metric);
    row("device", value.device);
    row("value", value.value);
  });
}

Table processes() {
  const auto lines = [](const AgentProfile& agent, const auto& emit) {
    for (const SystemLine& line : agent.samples) {
      for (const ProcessLine& process : line.processes) emit(line, process);
    }
  };
  return of_agents<SystemLine, ProcessLine>("processes", lines, [](auto& row, auto&, auto& line, auto& process) {
    row({"time_ns", Key::kMoment}, line.time_ns);
    row("rank", process.rank);
    row("resident_bytes", process.resident_bytes);
    row("cpu_percent", process.cpu_percent);
    row("cpu_wait_percent", process.cpu_wait_percent);
  });
}

Table gpus() {
  const auto lines = [](const AgentProfile& agent, const auto& emit) {
    for (const GpuLine& gpu : agent.gpus) emit(gpu);
  };
  return of_agents<GpuLine>("gpus", lines, [](auto& row, auto&, auto& gpu) {
    const std::int64_t bytes = gpu.total_memory_bytes;
    row("gpu", gpu.index);
    row("uuid", gpu.uuid);
    row("name", gpu.name);
    row("total_memory_bytes", bytes > 0 ? std::optional(bytes) : std::nullopt);
  });
}

Table metrics() {
  const auto each = [](const RunProfile& run, const auto& emit) {
    for (const Json& line : run.metrics) {
      for (const auto& [name, value] : object_at(line, "metrics").items()) {
        if (const auto number = number_of(value)) emit(std::nullopt, line, name, *number);
      }
    }
  };
  return make_table<Json, std::string, double>("metrics", each, [](auto& row, auto& line, auto& name, double value) {
    row("time", text(line, "time"));
    row("kind", text(line, "kind"));
    row("batch", integer(line, "batch"));
    row("epoch", integer(line, "epoch"));
    row("samples", integer(line, "samples"));
    row("name", name);
    row("value", std::isfinite(value) ? Cell(value) : Cell(non_finite_text(value)));
  });
}

Table events() {
  const auto each = [](const RunProfile& run, const auto& emit) {
    for (const Json& line : run.events) emit(std::nullopt, line);
  };
  return make_table<Json>("events", each, [](auto& row, const Json& line) {
    Json rest = Json::object();
    for (const auto& [key, value] : line.items()) {
      if (key != "time" && key != "event" && key != "rank" && key != "pid" && key != "host") rest[key] = value;
    }
    row("time", text(line, "time"));
    row("event", text(line, "event"));
    row("rank", line.contains("rank") ? std::optional(integer(line, "rank")) : std::nullopt);
    row("pid", integer(line, "pid"));
    row("host", text(line, "host"));
    row("fields", to_line(rest));
  });
}

}  // namespace

std::vector<Table> host_tables() {
  return {system(), processes(), gpus()};
}

std::vector<Table> log_tables() {
  return {metrics(), events()};
}

}  // namespace dtrain::analysis
