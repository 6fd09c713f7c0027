// The tables: one function each for what a rank or a host recorded. Times of ranks and hosts are put on rank 0's clock.
#include <array>
#include <optional>
#include <utility>

#include "dtrain/analysis/export.h"
#include "dtrain/analysis/operators.h"
#include "dtrain/profile/phase.h"
#include "export/more_tables.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;
using Row = std::vector<Cell>;

Cell known(std::int64_t value) {  // -1 stands for "not recorded"
  return value < 0 ? Cell() : Cell(value);
}
Cell seconds(const std::optional<double>& value) {
  return value ? Cell(*value) : Cell();
}

std::vector<Column> with_phases(std::vector<Column> columns) {
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    std::string name(profile::name_of(static_cast<Phase>(i)));
    for (char& c : name) c = c == '.' ? '_' : c;
    columns.push_back({name + "_ns", kInteger});
  }
  return columns;
}

// As in the dumps, train_batch is the whole of it, forward and backward included.
void add_phase_rows(const profile::PhaseTimes& phases, Row& row) {
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    std::int64_t value = phases[i];
    if (static_cast<Phase>(i) == Phase::kTrainBatch) {
      value += phases[static_cast<std::size_t>(Phase::kForward)] + phases[static_cast<std::size_t>(Phase::kBackward)];
    }
    row.emplace_back(value);
  }
}

Table ranks() {
  return {"ranks",
          {{"rank", kInteger},
           {"host", kText},
           {"agent", kText},
           {"pid", kInteger},
           {"start_ns", kInteger},
           {"steps", kInteger},
           {"samples", kInteger},
           {"initialization_s", kReal},
           {"loop_s", kReal},
           {"finalization_s", kReal},
           {"ended", kText},
           {"dropped", kInteger},
           {"lost", kInteger}},
          [](const RunProfile& profile, const Sink& sink) {
            for (const RankProfile& rank : profile.ranks) {
              const std::int64_t start = integer(rank.header, "start_ns", -1);
              sink({std::int64_t{rank.rank}, rank.host, rank.agent, known(integer(rank.header, "pid", -1)),
                    start < 0 ? Cell() : Cell(profile.to_common_ns(rank.rank, start)), rank.step_count(),
                    rank.sample_count(), seconds(rank.part_s("initialization")), seconds(rank.loop_s()),
                    seconds(rank.part_s("finalization")), rank.end ? Cell(rank.end->how) : Cell(), rank.dropped,
                    rank.lost});
            }
          }};
}

Table steps() {
  return {"steps",
          with_phases({{"rank", kInteger},
                       {"batch", kInteger},
                       {"epoch", kInteger},
                       {"start_ns", kInteger},
                       {"wall_ns", kInteger},
                       {"samples", kInteger},
                       {"exchanged", kInteger}}),
          [](const RunProfile& profile, const Sink& sink) {
            Row row;
            for (const RankProfile& rank : profile.ranks) {
              for (const StepLine& step : rank.steps) {
                row = {std::int64_t{rank.rank},
                       step.batch,
                       step.epoch,
                       profile.to_common_ns(rank.rank, step.start_ns),
                       step.wall_ns,
                       step.samples,
                       std::int64_t{step.exchanged}};
                add_phase_rows(step.phases, row);
                sink(row);
              }
            }
          }};
}

Table windows() {
  return {"windows",
          with_phases({{"rank", kInteger},
                       {"first_batch", kInteger},
                       {"last_batch", kInteger},
                       {"epoch", kInteger},
                       {"start_ns", kInteger},
                       {"end_ns", kInteger},
                       {"steps", kInteger},
                       {"exchanged", kInteger},
                       {"samples", kInteger},
                       {"outliers", kInteger},
                       {"wall_ns", kInteger},
                       {"wall_p50_ns", kInteger},
                       {"wall_max_ns", kInteger}}),
          [](const RunProfile& profile, const Sink& sink) {
            Row row;
            for (const RankProfile& rank : profile.ranks) {
              for (const WindowLine& w : rank.windows) {
                row = {std::int64_t{rank.rank},
                       w.first_batch,
                       w.last_batch,
                       w.epoch,
                       profile.to_common_ns(rank.rank, w.start_ns),
                       profile.to_common_ns(rank.rank, w.end_ns),
                       w.steps,
                       w.exchanged,
                       w.samples,
                       w.outliers,
                       w.wall_ns,
                       w.wall_p50_ns,
                       w.wall_max_ns};
                add_phase_rows(w.phases, row);
                sink(row);
              }
            }
          }};
}

Table collectives() {
  return {"collectives",
          {{"rank", kInteger},
           {"batch", kInteger},
           {"sequence", kInteger},
           {"operation", kText},
           {"bucket", kInteger},
           {"bytes", kInteger},
           {"world_size", kInteger},
           {"enqueued_ns", kInteger},
           {"started_ns", kInteger},
           {"ended_ns", kInteger},
           {"exposed_ns", kInteger},
           {"bus_bandwidth", kReal}},
          [](const RunProfile& profile, const Sink& sink) {
            for (const RankProfile& rank : profile.ranks) {
              for (const CollectiveLine& line : rank.collectives) {
                const auto common = [&](std::int64_t time) { return profile.to_common_ns(rank.rank, time); };
                sink({std::int64_t{rank.rank}, line.batch, line.sequence, std::string(name_of(line.operation)),
                      line.bucket < 0 ? Cell() : Cell(std::int64_t{line.bucket}), line.bytes,
                      std::int64_t{line.world_size}, common(line.enqueued_ns), common(line.started_ns),
                      common(line.ended_ns), line.exposed_ns, double{line.bus_bandwidth}});
              }
            }
          }};
}

Table collective_windows() {
  return {"collective_windows",
          {{"rank", kInteger},
           {"first_batch", kInteger},
           {"last_batch", kInteger},
           {"operation", kText},
           {"bucket", kInteger},
           {"world_size", kInteger},
           {"count", kInteger},
           {"bytes", kInteger},
           {"duration_ns", kInteger},
           {"exposed_ns", kInteger},
           {"queued_ns", kInteger}},
          [](const RunProfile& profile, const Sink& sink) {
            for (const RankProfile& rank : profile.ranks) {
              for (const WindowLine& window : rank.windows) {
                for (const CollectiveWindow& c : window.collectives) {
                  sink({std::int64_t{rank.rank}, window.first_batch, window.last_batch,
                        std::string(name_of(c.operation)), c.bucket < 0 ? Cell() : Cell(std::int64_t{c.bucket}),
                        std::int64_t{c.world_size}, c.count, c.bytes, c.duration_ns, c.exposed_ns, c.queued_ns});
                }
              }
            }
          }};
}

Table loader() {
  return {
      "loader",
      {{"rank", kInteger},
       {"batch", kInteger},
       {"time_ns", kInteger},
       {"queue_depth", kInteger},
       {"workers", kInteger},
       {"fetch_ns", kInteger},
       {"pinned", kInteger},
       {"cpu_ns", kInteger},
       {"no_core_ns", kInteger},
       {"bytes", kInteger},
       {"disk_bytes", kInteger},
       {"requests", kInteger},
       {"skipped", kInteger}},
      [](const RunProfile& profile, const Sink& sink) {
        for (const RankProfile& rank : profile.ranks) {
          for (const LoaderLine& line : rank.loader) {
            const LoaderUsage& usage = line.usage;
            const bool measured = usage.batches > 0;
            const auto if_measured = [&](std::int64_t value) { return measured ? Cell(value) : Cell(); };
            sink({std::int64_t{rank.rank}, line.batch, profile.to_common_ns(rank.rank, line.time_ns),
                  std::int64_t{line.queue_depth}, std::int64_t{line.workers}, known(line.fetch_ns), known(line.pinned),
                  if_measured(usage.cpu_ns), if_measured(usage.no_core_ns), if_measured(usage.bytes),
                  if_measured(usage.disk_bytes), if_measured(usage.requests), if_measured(usage.skipped)});
          }
        }
      }};
}

Table scopes() {
  return {"scopes",
          {{"rank", kInteger},
           {"batch", kInteger},
           {"scope", kText},
           {"calls", kInteger},
           {"wall_ns", kInteger},
           {"phase", kText}},
          [](const RunProfile& profile, const Sink& sink) {
            for (const RankProfile& rank : profile.ranks) {
              for (const ScopeStep& step : rank.scope_steps) {
                sink({std::int64_t{rank.rank}, step.batch, rank.scope_paths[static_cast<std::size_t>(step.path)],
                      std::int64_t{step.calls}, step.wall_ns, std::string(profile::name_of(step.phase))});
              }
            }
          }};
}

// Over all steps, also those in windows.
Table scope_totals() {
  return {"scope_totals",
          with_phases(
              {{"rank", kInteger}, {"scope", kText}, {"steps", kInteger}, {"calls", kInteger}, {"wall_ns", kInteger}}),
          [](const RunProfile& profile, const Sink& sink) {
            Row row;
            for (const RankProfile& rank : profile.ranks) {
              for (const auto& [path, totals] : rank.scopes) {
                row = {std::int64_t{rank.rank}, path, totals.steps, totals.calls, totals.wall_ns};
                add_phase_rows(totals.phases, row);
                sink(row);
              }
            }
          }};
}

Table memory() {
  return {"memory",
          {{"rank", kInteger},
           {"time_ns", kInteger},
           {"batch", kInteger},
           {"resident_bytes", kInteger},
           {"peak_bytes", kInteger},
           {"anonymous_bytes", kInteger},
           {"free_heap_bytes", kInteger}},
          [](const RunProfile& profile, const Sink& sink) {
            for (const RankProfile& rank : profile.ranks) {
              for (const MemoryLine& line : rank.memory) {
                sink({std::int64_t{rank.rank}, profile.to_common_ns(rank.rank, line.time_ns), line.batch,
                      line.resident_bytes, line.peak_bytes, line.anonymous_bytes, known(line.free_heap_bytes)});
              }
            }
          }};
}

Table parts() {
  return {"parts",
          {{"rank", kInteger}, {"part", kText}, {"start_ns", kInteger}, {"end_ns", kInteger}},
          [](const RunProfile& profile, const Sink& sink) {
            for (const RankProfile& rank : profile.ranks) {
              for (const PartLine& line : rank.parts) {
                sink({std::int64_t{rank.rank}, line.part, profile.to_common_ns(rank.rank, line.start_ns),
                      profile.to_common_ns(rank.rank, line.end_ns)});
              }
            }
          }};
}

Table clocks() {
  return {"clocks",
          {{"rank", kInteger}, {"time_ns", kInteger}, {"offset_ns", kInteger}, {"error_ns", kInteger}},
          [](const RunProfile& profile, const Sink& sink) {
            for (const RankProfile& rank : profile.ranks) {
              for (const ClockLine& line : rank.clocks) {
                sink({std::int64_t{rank.rank}, line.time_ns, line.offset_ns, line.error_ns});
              }
            }
          }};
}

Table operators() {
  return {"operators",
          {{"device", kText},
           {"name", kText},
           {"class", kText},
           {"calls", kInteger},
           {"self_s", kReal},
           {"total_s", kReal},
           {"share", kReal}},
          [](const RunProfile& profile, const Sink& sink) {
            const Operators all = operators_of_run(profile.folder);
            for (const auto& [device, list] : {std::pair("cpu", &all.cpu), std::pair("gpu", &all.gpu)}) {
              for (const OperatorRow& row : list->rows) {
                sink({std::string(device), row.name, std::string(name_of(row.kind)), row.calls, row.self_s, row.total_s,
                      row.share});
              }
            }
          }};
}

}  // namespace

std::vector<Table> run_tables() {
  std::vector<Table> tables{ranks(),  steps(),    windows(),      collectives(), collective_windows(),
                            loader(), scopes(),   scope_totals(), memory(),      parts(),
                            clocks(), operators()};
  for (auto more : {host_tables(), log_tables()}) {
    tables.insert(tables.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  return tables;
}

}  // namespace dtrain::analysis
