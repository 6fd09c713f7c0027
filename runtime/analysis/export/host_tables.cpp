// The tables of what a host's agent saw, and of the run's own files.
#include <cmath>

#include "dtrain/analysis/export.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/json.h"
#include "dtrain/base/json_number.h"
#include "export/more_tables.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

// A host's clock on rank 0's, by way of one of its ranks: they share it.

inline std::int64_t host_to_common_ns(const RunProfile& profile, const AgentProfile& agent, std::int64_t time_ns) {
  for (const RankProfile& rank : profile.ranks) {
    if (profile.agent_of(rank) == &agent) return profile.to_common_ns(rank.rank, time_ns);
  }
  return time_ns;
}

// One row a value: which metrics there are depends on the machine.
Table system() {
  return {"system",
          {{"agent", kText},
           {"host", kText},
           {"time_ns", kInteger},
           {"interval_ns", kInteger},
           {"metric", kText},
           {"device", kInteger},
           {"value", kReal}},
          [](const RunProfile& profile, const Sink& sink) {
            for (const AgentProfile& agent : profile.agents) {
              for (const SystemLine& line : agent.samples) {
                const std::int64_t time = host_to_common_ns(profile, agent, line.time_ns);
                const auto put = [&](const std::string& metric, Cell device, double value) {
                  sink({agent.agent, agent.host, time, line.interval_ns, metric, std::move(device), value});
                };
                for (const auto& [name, value] : line.metrics) put(name, {}, value);
                for (std::size_t core = 0; core < line.cpu_util_per_core.size(); ++core) {
                  put("cpu_util_per_core", static_cast<std::int64_t>(core), line.cpu_util_per_core[core]);
                }
                for (const auto& [index, metrics] : line.gpus) {
                  for (const auto& [name, value] : metrics) put(name, index, value);
                }
              }
            }
          }};
}

Table processes() {
  return {"processes",
          {{"agent", kText},
           {"time_ns", kInteger},
           {"rank", kInteger},
           {"resident_bytes", kReal},
           {"cpu_percent", kReal},
           {"cpu_wait_percent", kReal}},
          [](const RunProfile& profile, const Sink& sink) {
            for (const AgentProfile& agent : profile.agents) {
              for (const SystemLine& line : agent.samples) {
                for (const ProcessLine& process : line.processes) {
                  sink({agent.agent, host_to_common_ns(profile, agent, line.time_ns), std::int64_t{process.rank},
                        process.resident_bytes, process.cpu_percent,
                        process.cpu_wait_percent < 0 ? Cell() : Cell(process.cpu_wait_percent)});
                }
              }
            }
          }};
}

Table gpus() {
  return {"gpus",
          {{"agent", kText}, {"gpu", kInteger}, {"uuid", kText}, {"name", kText}, {"total_memory_bytes", kInteger}},
          [](const RunProfile& profile, const Sink& sink) {
            for (const AgentProfile& agent : profile.agents) {
              for (const GpuLine& gpu : agent.gpus) {
                sink({agent.agent, gpu.index, gpu.uuid, gpu.name,
                      gpu.total_memory_bytes > 0 ? Cell(gpu.total_memory_bytes) : Cell()});
              }
            }
          }};
}

Table metrics() {
  return {"metrics",
          {{"time", kText},
           {"kind", kText},
           {"batch", kInteger},
           {"epoch", kInteger},
           {"samples", kInteger},
           {"name", kText},
           {"value", kReal}},
          [](const RunProfile& profile, const Sink& sink) {
            for (const Json& line : profile.metrics) {
              for (const auto& [name, value] : object_at(line, "metrics").items()) {
                const auto number = number_of(value);
                if (!number) continue;
                sink({text(line, "time"), text(line, "kind"), integer(line, "batch"), integer(line, "epoch"),
                      integer(line, "samples"), name,
                      std::isfinite(*number) ? Cell(*number) : Cell(non_finite_text(*number))});
              }
            }
          }};
}

Table events() {
  return {
      "events",
      {{"time", kText}, {"event", kText}, {"rank", kInteger}, {"pid", kInteger}, {"host", kText}, {"fields", kText}},
      [](const RunProfile& profile, const Sink& sink) {
        for (const Json& line : profile.events) {
          Json rest = Json::object();
          for (const auto& [key, value] : line.items()) {
            if (key != "time" && key != "event" && key != "rank" && key != "pid" && key != "host") rest[key] = value;
          }
          sink({text(line, "time"), text(line, "event"), line.contains("rank") ? Cell(integer(line, "rank")) : Cell(),
                integer(line, "pid"), text(line, "host"), to_line(rest)});
        }
      }};
}

}  // namespace

std::vector<Table> host_tables() {
  return {system(), processes(), gpus()};
}

std::vector<Table> log_tables() {
  return {metrics(), events()};
}

}  // namespace dtrain::analysis
