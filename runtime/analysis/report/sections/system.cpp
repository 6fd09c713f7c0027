// How much of the hosts was used.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "report/sections.h"
#include "report/system_charts.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

std::string value_with_unit(double value, const std::string& unit) {
  if (unit == "bytes") return format_bytes(value);
  if (unit == "bytes/s") return format_bytes(value) + "/s";
  if (unit == "percent") return fmt::format("{:.1f}%", value);
  return fmt::format("{:.1f}", value);
}

void add_rows(Table& table, const std::string& host, const std::vector<MetricSummary>& metrics) {
  for (const MetricSummary& m : metrics) {
    const auto cell = [&](double value) { return Cell(value_with_unit(value, m.unit), value); };
    table.row({host, m.name, m.unit, cell(m.max), cell(m.p99), cell(m.p95), cell(m.p50), cell(m.mean), cell(m.min)});
  }
}

struct Picture {
  const char* id;
  const char* title;
  const char* text;
  const char* axis;
  const char* unit;
  std::vector<MetricLine> metrics;
};

const std::vector<Picture>& pictures() {
  static const std::vector<Picture> all = {
      {"cpu-series",
       "CPUs",
       "All cores of a host together, and the time they had nothing to do but wait for a disk.",
       "of all cores",
       "percent",
       {{"cpu_util_simple", "busy"}, {"io_wait", "waiting for a disk"}}},
      {"memory-series",
       "Free memory",
       "What programs could still get.",
       "free memory",
       "bytes",
       {{"free_memory", "free memory"}}},
      {"network-series",
       "Network",
       "Between hosts; traffic between ranks of one host is not in it.",
       "throughput",
       "bytes/s",
       {{"net_throughput_sent", "sent"}, {"net_throughput_recv", "received"}}},
      {"disk-series",
       "Disks",
       "All whole disks of a host together.",
       "throughput",
       "bytes/s",
       {{"disk_throughput_read", "read"}, {"disk_throughput_write", "written"}}}};
  return all;
}

}  // namespace

void write_system(Page& page, const Input& input) {
  page.begin_section("system", "System usage");
  Table table("Usage of each host over the run, twice a second", {{"host"},
                                                                  {"metric"},
                                                                  {"unit"},
                                                                  {"max", true},
                                                                  {"p99", true},
                                                                  {"p95", true},
                                                                  {"p50", true},
                                                                  {"mean", true},
                                                                  {"min", true}});
  for (const AgentSummary& agent : input.analysis.summary.agents) {
    const std::string host = agent.host.empty() ? agent.agent : agent.host;
    add_rows(table, host, agent.metrics);
    for (const GpuSummary& gpu : agent.gpus) add_rows(table, fmt::format("{} GPU {}", host, gpu.index), gpu.metrics);
  }
  if (table.empty()) {
    page.absent("No system metrics.", "No agent's dump with samples is in the run's profile folder.",
                "One agent a host writes it (profile/agent-*.jsonl); a run of under half a second has no sample.");
    return;
  }
  page.table(table);
  page.begin_columns();
  for (const Picture& picture : pictures()) {
    Json spec = host_series(input, picture.metrics, picture.axis, picture.unit);
    if (spec.is_null()) continue;
    page.chart(
        {.id = picture.id, .title = picture.title, .text = picture.text, .spec = std::move(spec), .height = 210});
  }
  page.end_columns();
}

}  // namespace dtrain::analysis::report
